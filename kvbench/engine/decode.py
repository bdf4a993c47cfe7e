"""Greedy decode of all branches of a sample as one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from kvbench.engine.cache import CompactCache
from kvbench.engine.prefill import Prefill


@torch.inference_mode()
def decode(
    adapter,
    prefill: Prefill,
    kept: list[list[list[Tensor]] | None],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    finished: Callable[[list[int]], bool] | None = None,
) -> list[list[int]]:
    """Tokens of every branch, the stop token included.

    kept: per branch the ascending prompt positions per layer and KV head; None keeps the whole prompt
    (FullKV). A branch ends with a token of `stop_ids`, after `max_new_tokens`, or when `finished(tokens)`
    says so, and leaves the batch at once. Branches with equal kept sets are decoded once.
    """
    unique, owner = _deduplicate(kept, prefill.length)
    tokens: list[list[int]] = [[] for _ in unique]
    stop_ids = frozenset(stop_ids)

    def accept(branch: int, token: int) -> bool:
        """Append a token; True while the branch goes on."""
        tokens[branch].append(token)
        if token in stop_ids or len(tokens[branch]) >= max_new_tokens:
            return False
        return not (finished is not None and finished(tokens[branch]))

    first = int(prefill.logits.argmax())  # prefill is exact, so every branch starts with the same token
    active = [b for b in range(len(unique)) if max_new_tokens > 0 and accept(b, first)]
    if active:
        cache = CompactCache(prefill, [unique[b] for b in active], room=max_new_tokens - 1)
        _steps(adapter, prefill, cache, active, tokens, accept)
    return [list(tokens[index]) for index in owner]


def _steps(adapter, prefill: Prefill, cache: CompactCache, active: list[int], tokens, accept) -> None:
    """Advance the active branches token by token until none is left."""
    device = prefill.key_stack.device
    latest = torch.tensor([tokens[b][-1] for b in active], device=device)
    position = prefill.next_position
    while True:
        logits = adapter.step(latest, position, cache)
        cache.advance()
        position += 1
        chosen = logits.argmax(-1)
        going = [accept(b, token) for b, token in zip(active, chosen.tolist(), strict=True)]
        if not all(going):
            stay = [i for i, goes_on in enumerate(going) if goes_on]
            if not stay:
                return
            cache.retain(stay)
            active = [active[i] for i in stay]
            chosen = chosen[torch.tensor(stay, device=device)]
        latest = chosen


def _deduplicate(kept: list[list[list[Tensor]] | None], length: int) -> tuple[list, list[int]]:
    """(distinct kept sets, index of each branch's set); a set that keeps everything counts as None."""
    unique, owner, seen = [], [], {}
    for sets in kept:
        key = None
        if sets is not None:
            heads = [head for layer in sets for head in layer]
            sizes = tuple(len(head) for head in heads)
            if all(size == length for size in sizes):
                sets = None
            else:
                key = (sizes, torch.cat(heads).cpu().numpy().tobytes())
        if key not in seen:
            seen[key] = len(unique)
            unique.append(sets)
        owner.append(seen[key])
    return unique, owner
