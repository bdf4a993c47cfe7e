"""No refresh: the selection made after prefill stays."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.refresh.base import Refresh
from kvbench.methods.registry import refresh


@refresh("none", line="one-shot selection, never refreshed", source="the eviction methods themselves")
@dataclass(frozen=True)
class NoRefresh(Refresh):
    pass
