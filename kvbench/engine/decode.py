"""Greedy decode of all branches of a sample as one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from kvbench.engine.cache import CompactCache, Watcher
from kvbench.engine.prefill import Prefill
from kvbench.engine.refresh import Plan, Prefixes, Recorder, collect, is_oracle, make_groups, speculation
from kvbench.engine.trace import Trace


@torch.inference_mode()
def decode(
    adapter,
    prefill: Prefill,
    kept: list[list[list[Tensor]] | None],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    finished: Callable[[list[int]], bool] | None = None,
    plans: list[Plan | None] | None = None,
    traces: list[Trace] | None = None,
) -> list[list[int]]:
    """Tokens of every branch, the stop token included.

    kept: per branch the ascending prompt positions per layer and KV head; None keeps the whole prompt
    (FullKV). A branch ends with a token of `stop_ids`, after `max_new_tokens`, or when `finished(tokens)`
    says so, and leaves the batch at once. Branches with equal kept sets and plans are decoded once.
    plans: per branch how it refreshes, see kvbench.engine.refresh. traces: an empty list, filled with a Trace
    per branch; every branch then needs a plan.
    """
    stop_ids = frozenset(stop_ids)
    end = (max_new_tokens, stop_ids, finished)
    plans = [None] * len(kept) if plans is None else list(plans)
    prefixes = Prefixes(prefill)
    if any(is_oracle(plan) for plan in plans):
        kept, plans = _consult(adapter, prefill, kept, plans, prefixes, end, traces is not None)
    unique, unique_plans, owner = _deduplicate(kept, plans, prefill.length)
    groups = []

    def watch(active: list[int]) -> list[Watcher]:
        chosen = [unique[b] for b in active], [unique_plans[b] for b in active], active
        groups.extend(make_groups(prefixes, *chosen, traces is not None))
        return groups

    tokens = _run(adapter, prefill, unique, *end, watch, prefixes.release)
    if traces is not None:
        collected = collect(groups, len(unique), prefill.key_stack.shape[0])
        traces.extend(collected[index] for index in owner)
    return [list(tokens[index]) for index in owner]


def _run(
    adapter, prefill: Prefill, kept: list, max_new_tokens: int, stop_ids, finished, watch, built=None
) -> list[list[int]]:
    """Tokens of distinct branches. watch(branches that go on after the first token) gives the watchers.

    built: called when the cache holds what it needs of the prompt.
    """
    tokens: list[list[int]] = [[] for _ in kept]

    def accept(branch: int, token: int) -> bool:
        """Append a token; True while the branch goes on."""
        tokens[branch].append(token)
        if token in stop_ids or len(tokens[branch]) >= max_new_tokens:
            return False
        return not (finished is not None and finished(tokens[branch]))

    first = int(prefill.logits.argmax())  # prefill is exact, so every branch starts with the same token
    active = [b for b in range(len(kept)) if max_new_tokens > 0 and accept(b, first)]
    if active:
        watchers = watch(active)
        cache = CompactCache(prefill, [kept[b] for b in active], max_new_tokens - 1, watchers)
        if built is not None:
            built()
        with speculation(adapter.model, watchers, cache.layers):
            _steps(adapter, prefill, cache, active, tokens, accept)
    return tokens


def _consult(
    adapter, prefill: Prefill, kept, plans, prefixes: Prefixes, end, trace: bool
) -> tuple[list, list]:
    """(kept, plans) with the oracles' selections, from one uncompressed decode, in place of the first."""
    asked = {(plan.window, plan.policy.group): None for plan in plans if is_oracle(plan)}
    recorder = Recorder(prefixes[False], list(asked))
    _run(adapter, prefill, [None], *end, lambda active: [recorder])
    kept, plans = list(kept), list(plans)
    for i, plan in enumerate(plans):
        if is_oracle(plan):
            if recorder.steps:  # an answer of one token never attends to the cache
                kept[i] = recorder.select(plan)
            plans[i] = Plan(None, plan.window, plan.selected) if trace else None
    return kept, plans


def _steps(adapter, prefill: Prefill, cache: CompactCache, active: list[int], tokens, accept) -> None:
    """Advance the active branches token by token until none is left."""
    device = prefill.logits.device
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


def _deduplicate(
    kept: list[list[list[Tensor]] | None], plans: list[Plan | None], length: int
) -> tuple[list, list[Plan | None], list[int]]:
    """(distinct kept sets, their plans, each branch's index); a set that keeps everything counts as None."""
    unique, unique_plans, owner, seen = [], [], [], {}
    for sets, plan in zip(kept, plans, strict=True):
        key = None
        if sets is not None:
            heads = [head for layer in sets for head in layer]
            sizes = tuple(len(head) for head in heads)
            if all(size == length for size in sizes):
                sets = None
            else:
                key = (sizes, torch.cat(heads).cpu().numpy().tobytes())
        key = (key, plan)
        if key not in seen:
            seen[key] = len(unique)
            unique.append(sets)
            unique_plans.append(plan)
        owner.append(seen[key])
    return unique, unique_plans, owner
