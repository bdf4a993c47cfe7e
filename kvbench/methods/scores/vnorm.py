"""VNorm: values of large norm (InfiniPot-V's proxy)."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import Score
from kvbench.methods.registry import score


@score("vnorm", line="largest value norm", source="InfiniPot-V (arXiv:2506.15745)")
@dataclass(frozen=True)
class VNorm(Score):
    def __call__(self, view, selected):
        return view.value_norms
