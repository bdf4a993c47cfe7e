"""What the claims ask of one prompt's attention and keys: numbers, and lists with one number a layer.

L layers, H KV heads, N prompt tokens. *Evidence* is the tiles of the label and of the value that a question
asks about, known from the page's generator; *strong* tiles are those that a layer's last query attends most.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvbench.claims.cells import TIGHTEST, WINDOW
from kvbench.engine.generate import observe
from kvbench.engine.prefill import Prefill
from kvbench.methods import build
from kvbench.methods.select import kept_mask, top_mask

STRONG = 16  # tiles a layer: as many as a head selects at that budget
RADIUS = 5  # of BACON's neighbourhood (eq. 5)


def quantities(prompt: Prefill, label: Sequence[int], value: Sequence[int]) -> dict[str, Any]:
    """Everything that ``measured`` stores of a prompt whose question is answered by these tiles.

    The prefill holds the queries of all text after the picture. Tiles count the visual tokens in order.
    """
    tiles = prompt.visual_mask.nonzero().flatten()
    answer, evidence = tiles[list(value)], tiles[sorted({*label, *value})]
    return attention(prompt, tiles, answer, evidence) | keys(prompt) | selection_time(prompt)


def attention(prompt: Prefill, tiles: Tensor, answer: Tensor, evidence: Tensor) -> dict[str, float]:
    """BACON's observations. tiles, answer, evidence: positions in the prompt."""
    observation = observe(prompt)
    text = prompt.length - int(tiles[-1]) - 1
    last = observation.query_mean(1)[..., : prompt.length - text]  # [L, query heads, up to the last tile]
    every = observation.query_mean(text)
    earlier = (text * every - last) / (text - 1)
    found = {}
    for name, where in (("answer", answer), ("evidence", evidence)):
        found[f"{name}_last"] = share(last, where)
        found[f"{name}_earlier"] = share(earlier, where)
    view = observation.view(WINDOW, "mean", "none")
    size = TIGHTEST - WINDOW
    found["recall_last"] = recall(view.reduced(view.last_attention), evidence, size)
    found["recall_window"] = recall(view.b, evidence, size)
    on_tiles = last[..., tiles]
    marked = torch.isin(tiles, evidence)
    grouped = on_tiles.view(*prompt.key_stack.shape[:2], -1, len(tiles)).mean(2)
    found["noise"] = 1 - recall(grouped, marked.nonzero().flatten(), int(marked.sum()))
    return found | structure(on_tiles.mean(1), marked)


def share(probabilities: Tensor, where: Tensor) -> float:
    """Percent of the attention that falls on positions, mean over layers and heads."""
    return 100 * float(probabilities[..., where].sum(-1).mean())


def recall(scores: Tensor, evidence: Tensor, size: int) -> float:
    """Share of the evidence among each head's ``size`` highest scores [L, H, M], mean over heads."""
    chosen = top_mask(scores, torch.full(scores.shape[:2], min(size, scores.shape[-1])))
    return float(chosen[..., evidence].float().mean())


def structure(scores: Tensor, marked: Tensor) -> dict[str, float]:
    """Coherence and persistence of the strong tiles; scores [L, T], marked bool [T] evidence.

    Coherence: share of the tiles within RADIUS of a strong one that are strong too. Persistence: share of the
    strong tiles that are strong in the next layer. Means over all strong tiles that are evidence, and over
    those that are not; NaN where there are none.
    """
    layers, count = scores.shape
    strong = top_mask(scores[:, None], torch.full((layers, 1), min(STRONG, count)))[:, 0]
    distance = (torch.arange(count)[:, None] - torch.arange(count)).abs()
    near = ((distance > 0) & (distance <= RADIUS)).to(scores)
    coherence = strong.to(scores) @ near / near.sum(0)
    found = {}
    for name, kind in (("evidence", marked), ("noise", ~marked)):
        these = strong & kind
        found[f"coherence_{name}"] = float(coherence[these].mean())
        found[f"persistence_{name}"] = float(strong[1:][these[:-1]].float().mean())
    return found


def keys(prompt: Prefill) -> dict[str, list[float]]:
    """ECOKV's observations by layer, means over KV heads.

    cosine: mean cosine of two different keys; weight: the diversity's weight λ; correlation: Spearman's ρ of
    importance and diversity over the candidates.
    """
    from scipy.stats import spearmanr

    method = build({"name": "snapkv+ecokv"}, TIGHTEST)
    view = observe(prompt).view(method.window, *method.base)
    diversity, importance = method.score.diversity(view), view.importance
    correlation = [
        statistics.fmean(
            float(spearmanr(importance[layer, head], diversity[layer, head]).statistic)
            for head in range(importance.shape[1])
        )
        for layer in range(importance.shape[0])
    ]
    return {
        "cosine": view.redundancy.mean(1).tolist(),
        "weight": method.score.weight(view).mean(1).tolist(),
        "correlation": correlation,
    }


def selection_time(prompt: Prefill, repeats: int = 3) -> dict[str, float]:
    """Milliseconds of one selection, with and without BACON, each from scratch: the fastest of a few."""
    fastest = {"select_base": math.inf, "select_bacon": math.inf}
    for _ in range(repeats):
        for name, method in (("select_base", "snapkv"), ("select_bacon", "snapkv+bacon")):
            chosen = build({"name": method, "window": WINDOW}, TIGHTEST)
            start = time.perf_counter()
            kept_mask(chosen, observe(prompt))
            fastest[name] = min(fastest[name], 1000 * (time.perf_counter() - start))
    return fastest
