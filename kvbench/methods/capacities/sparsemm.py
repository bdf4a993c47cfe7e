"""SparseMM capacity: heads that look at pictures get more, by calibrated visual-head scores."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kvbench.errors import UserError
from kvbench.methods.base import UnevenCapacity
from kvbench.methods.registry import capacity, option


def read_head_scores(path: str | Path, layers: int, query_heads: int):
    """[layers, query_heads] from the published JSON {"layer-head": [score, ...]}: the mean of each list."""
    import torch

    try:
        table = json.loads(Path(path).expanduser().read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read head scores from {path}: {error}.") from error
    scores = torch.zeros(layers, query_heads, dtype=torch.float64)
    try:
        for layer in range(layers):
            for head in range(query_heads):
                entry = table[f"{layer}-{head}"]
                entry = entry if isinstance(entry, list) else [entry]
                scores[layer, head] = sum(map(float, entry)) / max(len(entry), 1)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"head scores in {path} lack a valid entry {error}: a model of {layers} layers and {query_heads} "
            f'query heads needs every "layer-head" from "0-0" to "{layers - 1}-{query_heads - 1}".'
        ) from error
    return scores


@capacity(
    "sparsemm",
    line="heads share the whole model's entries by visual-head scores",
    source="SparseMM (ICCV 2025)",
)
@dataclass(frozen=True)
class SparseMM(UnevenCapacity):
    ratio: float = option(0.1, "share of B that every head gets regardless", minimum=0, maximum=1)
    scores: str | None = option(None, "JSON file of visual-head scores; default: the model's own")

    def __call__(self, view, selected):

        layers, heads, _ = view.observation.shape
        query_heads = view.observation.window_queries.shape[1]
        scores = view.observation.head_scores
        if self.scores is not None:
            scores = view.observation.memo(
                ("head scores", self.scores), lambda: read_head_scores(self.scores, layers, query_heads)
            )
        if scores is None:
            raise UserError(
                "sparsemm needs visual-head scores: run `kvbench calibrate heads model=...` and set "
                "capacity.scores to its JSON file, or pass head_scores [layers, query_heads] to select()."
            )
        if tuple(scores.shape) != (layers, query_heads):
            raise UserError(
                f"head scores have shape {tuple(scores.shape)}, but the model has {layers} layers and "
                f"{query_heads} query heads: calibrate this model with `kvbench calibrate heads model=...`."
            )
        scores = scores.double().cpu()
        if not bool(scores.isfinite().all()) or bool((scores < 0).any()) or float(scores.sum()) <= 0:
            raise UserError(
                "head scores must be finite, not negative and not all zero: calibrate the heads again."
            )
        shares = (scores / scores.sum()).view(layers, heads, -1).sum(-1)
        least = int(self.ratio * selected)
        rest = (selected - least) * layers * heads
        return (shares * rest + least).round().long().clamp(0, view.candidates)
