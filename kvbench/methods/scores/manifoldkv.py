"""ManifoldKV: keys far from the raw centroid."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import Score
from kvbench.methods.registry import score


@score("manifoldkv", line="largest distance to the mean key", source="ManifoldKV; ECOKV section 2.1")
@dataclass(frozen=True)
class ManifoldKV(Score):
    def __call__(self, view, selected):
        return view.centroid_distances("all")
