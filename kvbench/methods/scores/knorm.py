"""KNorm: keys of small norm are the ones attended."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import Score
from kvbench.methods.registry import score


@score("knorm", line="smallest key norm", source="Devoto et al. 2024 (arXiv:2406.11430)")
@dataclass(frozen=True)
class KNorm(Score):
    def __call__(self, view, selected):
        return -view.keys[:, :, : view.candidates].norm(dim=-1)
