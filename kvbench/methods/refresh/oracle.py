"""Prefill oracle: one selection, by the attention that the uncompressed answer itself pays to the prefix."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.refresh.base import Cost, Reselect
from kvbench.methods.registry import refresh


@refresh(
    "oracle",
    line="one-shot selection by the uncompressed answer's own attention",
    source="RCR, prefill oracle",
)
@dataclass(frozen=True)
class Oracle(Reselect):
    """The engine decodes once uncompressed, averages each step's attention to P and keeps its top."""

    def cost(self, prefix, dim, selected):
        return Cost()
