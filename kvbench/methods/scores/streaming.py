"""StreamingLLM: the first tokens as attention sinks, then the most recent ones."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import Score
from kvbench.methods.registry import option, score


@score(
    "streaming", line="first sinks, then the most recent positions", source="StreamingLLM (arXiv:2309.17453)"
)
@dataclass(frozen=True)
class Streaming(Score):
    sinks: int = option(4, "first positions that are kept before any other", minimum=0, maximum=1_000_000)

    def __call__(self, view, selected):
        import torch

        position = torch.arange(view.candidates, device=view.observation.keys.device)
        rank = torch.where(position < self.sinks, 2 * view.candidates - position, position)
        layers, heads, _ = view.observation.shape
        return rank.double().expand(layers, heads, -1)
