"""From scores and capacities to kept positions."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from kvbench.checks import suggest
from kvbench.errors import UserError
from kvbench.methods import contract
from kvbench.methods.base import scaled_counts
from kvbench.methods.method import Method, build, parse
from kvbench.methods.observation import Observation, View
from kvbench.methods.registry import lookup

KeptSet = list[list[Tensor]]  # ascending int64 positions per layer and KV head


def select(
    keys: Tensor,
    values: Tensor,
    window_queries: Tensor,
    *,
    method: str = "snapkv",
    budget: int | None = None,
    window: int | None = None,
    head_scores: Tensor | None = None,
    mixkv_weight: Tensor | None = None,
    visual_mask: Tensor | None = None,
    attention_sums: Tensor | None = None,
    scaling: float | None = None,
    capacity: dict[str, Any] | None = None,
    score: dict[str, Any] | None = None,
    **options: Any,
) -> KeptSet:
    """Which prompt positions a method keeps, per layer and KV head, ascending, window included.

    keys, values: [layers, kv_heads, N, d], post-RoPE. window_queries: [layers, query_heads, w, d], the
    queries of the last w >= window prompt positions. budget: entries per KV head, window included; a prompt
    that fits is kept whole. window: default 32, or the score's own default (4 for ecokv). Options of the
    score or the capacity go by name; where both have one of that name, use `capacity={...}` or
    `score={...}`. Extra inputs: head_scores [layers, query_heads] (sparsemm), mixkv_weight [layers,
    kv_heads] (mixkv's static prior; implies weight=static), visual_mask bool [N] (lookm), attention_sums
    [layers, query_heads, N] (h2o). scaling: what the model's attention multiplies its logits by (default
    head_dim ** -0.5). Raises UserError on bad input,
    MethodError when a score or capacity of one's own breaks its promise.

    >>> import torch, kvbench
    >>> keys, values = torch.randn(2, 2, 2, 100, 16)
    >>> queries = torch.randn(2, 4, 8, 16)
    >>> kept = kvbench.select(keys, values, queries, method="snapkv+bacon", budget=24, window=8)
    >>> [len(head) for layer in kept for head in layer]
    [24, 24, 24, 24]
    """
    parsed = parse(method)
    if parsed is None:
        _check_tensors(keys, values, window_queries, 0)
        every = torch.arange(keys.shape[2])
        return [[every for _ in range(keys.shape[1])] for _ in range(keys.shape[0])]
    parts = _route(parsed, options, capacity or {}, score or {})
    if mixkv_weight is not None and parsed[1] == "mixkv":
        parts["score"].setdefault("weight", "static")
    chosen = build({"name": method, "window": window, **parts}, budget)
    _check_tensors(keys, values, window_queries, chosen.window)
    scalings = None if scaling is None else [_check_scaling(scaling)] * len(keys)
    observation = Observation(
        keys, values, window_queries, visual_mask, attention_sums, head_scores, mixkv_weight, scalings
    )
    _check_extras(observation)
    return to_sets(kept_mask(chosen, observation))


def kept_mask(method: Method, observation: Observation) -> Tensor:
    """bool [L, H, N]: the prompt entries that a method keeps. Shares scores between budgets of one sample.

    Raises MethodError when its score or capacity raises or breaks its promise (kvbench.methods.contract).
    """
    layers, heads, length = observation.shape
    if method.full or method.budget >= length or method.window >= length:
        return torch.ones(layers, heads, length, dtype=torch.bool)
    view = observation.view(method.window, *method.base)
    by = method.score if method.capacity.needs_scores else None  # else the counts are those of any score
    selected = observation.memo(
        ("selected", method.capacity, by, method.window, method.base, method.budget),
        lambda: selected_counts(method, view),
    )
    if method.score.uses_capacity:
        scores = contract.score(method, view, selected)
        ranked = scores.sort(-1, descending=True).values
    else:
        scores = observation.memo(
            ("score", method.score, method.window), lambda: contract.score(method, view, selected)
        )
        ranked = observation.memo(
            ("ranked", method.score, method.window), lambda: scores.sort(-1, descending=True).values
        )
    kept = torch.ones(
        layers, heads, length, dtype=torch.bool
    )  # the window is kept by position, whatever the scores
    kept[..., : view.candidates] = top_mask(scores, selected, ranked)
    return kept


def selected_counts(method: Method, view: View) -> Tensor:
    """[L, H] int64: how many candidates each head selects."""
    counts = contract.capacity(method, view)
    if not getattr(method.capacity, "equal_entries", False):
        return counts
    total = counts.numel() * min(method.budget - method.window, view.candidates)
    return scaled_counts(counts, total, view.candidates)


def top_mask(scores: Tensor, sizes: Tensor, ranked: Tensor | None = None) -> Tensor:
    """bool [L, H, M]: the `sizes` [L, H] highest scores of each head, ties to the lower position.

    ranked: the scores sorted downwards, when they are already at hand.
    """
    if ranked is None:
        ranked = scores.sort(-1, descending=True).values
    sizes = sizes.to(scores.device).unsqueeze(-1)
    threshold = ranked.gather(-1, (sizes - 1).clamp(min=0))
    above, level = scores > threshold, scores == threshold
    spare = sizes - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= spare))


def to_sets(kept: Tensor) -> KeptSet:
    """bool [L, H, N] -> ascending positions per layer and head."""
    layers, heads, _ = kept.shape
    counts = kept.sum(-1).flatten().tolist()
    positions = kept.nonzero()[:, 2].split(counts)
    return [list(positions[layer * heads : (layer + 1) * heads]) for layer in range(layers)]


def _route(parsed: tuple[str, str], options: dict, capacity: dict, score: dict) -> dict[str, dict]:
    """Send each flat option to the part that has it."""
    parts = {"capacity": dict(capacity), "score": dict(score)}
    known = {
        kind: {f.name for f in fields(lookup(kind, name))}
        for kind, name in zip(("capacity", "score"), parsed, strict=True)
    }
    for key, value in options.items():
        owners = [kind for kind in parts if key in known[kind]]
        if not owners:
            raise UserError(
                f"capacity `{parsed[0]}` and score `{parsed[1]}` have no option `{key}`: "
                f"{suggest(key, known['capacity'] | known['score'])}"
            )
        if len(owners) == 2:
            raise UserError(
                f"both capacity `{parsed[0]}` and score `{parsed[1]}` have an option `{key}`: write "
                f"capacity={{'{key}': ...}} or score={{'{key}': ...}}."
            )
        parts[owners[0]][key] = value
    return parts


def _check_tensors(keys: Tensor, values: Tensor, queries: Tensor, window: int) -> None:
    for what, tensor in (("keys", keys), ("values", values), ("window_queries", queries)):
        if not isinstance(tensor, Tensor) or tensor.ndim != 4 or not tensor.is_floating_point():
            raise UserError(
                f"{what} must be a floating-point tensor of 4 dimensions [layers, heads, length, head_dim]."
            )
    if keys.shape[:3] != values.shape[:3]:
        raise UserError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)} must agree in layers, heads, length."
        )
    layers, heads, length, dim = keys.shape
    if length == 0 or layers == 0 or heads == 0:
        raise UserError("the prompt is empty: keys must hold at least one layer, head and position.")
    if queries.shape[0] != layers or queries.shape[3] != dim:
        raise UserError(
            f"window_queries {tuple(queries.shape)} must have the keys' {layers} layers and head_dim {dim}."
        )
    if queries.shape[1] == 0 or queries.shape[1] % heads:
        raise UserError(f"{queries.shape[1]} query heads are not a multiple of {heads} KV heads.")
    if queries.shape[2] < min(window, length):
        raise UserError(
            f"window_queries hold {queries.shape[2]} positions: pass the last {window}, the whole window."
        )
    for what, tensor in (("keys", keys), ("values", values), ("window_queries", queries)):
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{what} hold NaN or infinite entries: check the model's dtype and inputs.")


def _check_scaling(scaling: float) -> float:
    """A factor of the attention's logits. Raises UserError."""
    if isinstance(scaling, bool) or not isinstance(scaling, (int, float)) or not 0 < scaling < float("inf"):
        raise UserError(f"scaling must be a positive number, such as head_dim ** -0.5, not {scaling!r}.")
    return float(scaling)


def _check_extras(observation: Observation) -> None:
    layers, heads, length = observation.shape
    query_heads = observation.window_queries.shape[1]
    expected = {
        "visual_mask": (length,),
        "attention_sums": (layers, query_heads, length),
        "head_scores": (layers, query_heads),
        "mixkv_weight": (layers, heads),
    }
    for what, shape in expected.items():
        tensor = getattr(observation, what)
        if tensor is not None and tuple(tensor.shape) != shape:
            raise UserError(f"{what} must have shape {shape}, not {tuple(tensor.shape)}.")
        if tensor is not None and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"{what} holds NaN or infinite entries.")
