"""H2O: heavy hitters by the attention they receive from the whole prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvbench.errors import UserError
from kvbench.methods.base import Score
from kvbench.methods.registry import option, score


@score("h2o", line="column sums of the prefill attention", source="H2O (arXiv:2306.14048)")
@dataclass(frozen=True)
class H2O(Score):
    extras: ClassVar[frozenset[str]] = frozenset({"attention_sums"})

    reduce: str = option(
        "mean", "reduce the query heads of a KV head by mean or max", choices=("mean", "max")
    )

    def __call__(self, view, selected):
        sums = view.observation.attention_sums
        if sums is None:
            raise UserError(
                "h2o needs attention_sums [layers, query_heads, N]: the column sums of the prefill attention."
            )
        layers, heads, length = view.observation.shape
        grouped = sums.float().view(layers, heads, -1, length)[..., : view.candidates]
        return grouped.mean(2) if self.reduce == "mean" else grouped.amax(2)
