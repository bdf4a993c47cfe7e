"""TOVA: the last query's attention alone, averaged over the layer's heads as published (option `over`)."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import Score
from kvbench.methods.registry import option, score


@score("tova", line="attention of the last query only, not pooled", source="TOVA (arXiv:2401.06104)")
@dataclass(frozen=True)
class Tova(Score):
    over: str = option(
        "layer", "average over all heads of a layer or over each KV head's group", choices=("layer", "group")
    )

    def __call__(self, view, selected):
        layers, heads, _ = view.observation.shape
        attention = view.last_attention
        if self.over == "layer":
            return attention.mean(1, keepdim=True).expand(layers, heads, -1)
        return attention.view(layers, heads, -1, view.candidates).mean(2)
