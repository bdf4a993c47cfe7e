"""What the claims ask of one prompt: quantities of ``kvbench.observations``, and the time of selection.

L layers, H KV heads, N prompt tokens. *Evidence* is the tiles of the label and of the value that a question
asks about, known from the page's generator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvbench.claims.cells import TIGHTEST, WINDOW
from kvbench.engine.generate import observe
from kvbench.engine.prefill import Prefill
from kvbench.methods import build
from kvbench.methods.select import kept_mask
from kvbench.observations.evidence import by_head, recall, share, structure
from kvbench.observations.keys import keys


def quantities(prompt: Prefill, label: Sequence[int], value: Sequence[int]) -> dict[str, Any]:
    """Everything that ``measured`` stores of a prompt whose question is answered by these tiles.

    The prefill holds the queries of all text after the picture. Tiles count the visual tokens in order.
    """
    tiles = prompt.visual_mask.nonzero().flatten()
    answer, evidence = tiles[list(value)], tiles[sorted({*label, *value})]
    return attention(prompt, tiles, answer, evidence) | keys(observe(prompt)) | selection_time(prompt)


def attention(prompt: Prefill, tiles: Tensor, answer: Tensor, evidence: Tensor) -> dict[str, float]:
    """BACON's observations, means over layers. tiles, answer, evidence: positions in the prompt."""
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
    grouped = by_head(on_tiles, prompt.key_stack.shape[1])
    found["noise"] = 1 - recall(grouped, marked.nonzero().flatten(), int(marked.sum()))
    pairs = structure(on_tiles.mean(1), marked).items()
    return found | {name: float(values[these].mean()) for name, (values, these) in pairs}


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
