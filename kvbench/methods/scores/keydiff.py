"""KeyDiff: keys that point away from the mean direction."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import Score
from kvbench.methods.registry import score


@score("keydiff", line="least cosine to the mean unit key", source="KeyDiff (arXiv:2504.15364)")
@dataclass(frozen=True)
class KeyDiff(Score):
    def __call__(self, view, selected):
        # k_hat . mu = |mu| cos(k, mu): divide so that the score is the cosine itself
        return -view.cosines / view.mean_unit_key.norm(dim=-1).clamp(min=1e-12).unsqueeze(-1)
