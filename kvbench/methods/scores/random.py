"""Random selection: the floor that every score must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvbench.methods.base import Score
from kvbench.methods.registry import option, score


@score("random", line="seeded random positions", source="control")
@dataclass(frozen=True)
class Random(Score):
    random: ClassVar[bool] = True

    seed: int | None = option(
        None,
        "default: the run's seed; the same prompt length always draws the same positions",
        minimum=0,
        maximum=2**63 - 1,
    )

    def __call__(self, view, selected):
        import torch

        layers, heads, _ = view.observation.shape
        generator = torch.Generator().manual_seed(self.seed or 0)
        scores = torch.rand(layers, heads, view.candidates, generator=generator)
        return scores.to(view.observation.keys.device)
