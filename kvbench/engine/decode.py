"""Greedy decode of all branches of a sample as one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from kvbench.engine.cache import CompactCache, Watcher
from kvbench.engine.oracle import Recorder, is_oracle
from kvbench.engine.paths import Compact, Step, choose
from kvbench.engine.prefill import Prefill
from kvbench.engine.prefix import Prefixes
from kvbench.engine.ragged import RaggedCache
from kvbench.engine.refresh import Plan, collect, make_groups
from kvbench.engine.speculate import speculation
from kvbench.engine.trace import Trace
from kvbench.engine.waves import in_waves

# Decode steps between two looks at the tokens. On a GPU a look makes the host wait for the device.
CPU_INTERVAL, GPU_INTERVAL = 1, 8


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
    max_branch_bytes: int | None = None,
    say: Callable[[str], None] = print,
    compiled: bool = False,
    cache: str = "auto",
) -> list[list[int]]:
    """Tokens of every branch, the stop token included.

    kept: per branch the ascending prompt positions per layer and KV head; None keeps the whole prompt
    (FullKV). A branch ends with a token of `stop_ids`, after `max_new_tokens`, or when `finished(tokens)`
    says so, and leaves the batch at once. Branches with equal kept sets and plans are decoded once.
    plans: per branch how it refreshes, see kvbench.engine.refresh. traces: an empty list, filled with a Trace
    per branch; every branch then needs a plan. max_branch_bytes: branches that hold more together decode in
    waves; None: half of the free memory. say: told when memory ran out and smaller waves are tried.
    compiled: the step as one graph (kvbench.engine.compiled). cache: compact, ragged or auto, see
    kvbench.engine.paths. A sample with a branch that refreshes has the compact one and is not compiled.
    """
    stop_ids = frozenset(stop_ids)
    end = (max_new_tokens, stop_ids, finished)
    plans = [None] * len(kept) if plans is None else list(plans)
    prefixes = Prefixes(prefill)
    if any(is_oracle(plan) for plan in plans):
        kept, plans = _consult(adapter, prefill, kept, plans, prefixes, end, traces is not None)
    unique, unique_plans, owner = _deduplicate(kept, plans, prefill.length)
    prefixes.prepare(unique_plans)
    refreshing = any(plan is not None for plan in unique_plans)
    path = choose(adapter, prefill, max_new_tokens, refreshing, cache, compiled)
    groups = []
    tokens: list[list[int]] = [[] for _ in unique]

    def run(wave: list[int]) -> None:
        own = []

        def watch(active: list[int]) -> list[Watcher]:
            branches = [wave[i] for i in active]
            chosen = [unique[b] for b in branches], [unique_plans[b] for b in branches], branches
            own.extend(make_groups(prefixes, *chosen, traces is not None))
            return own

        answers = _run(path, [unique[b] for b in wave], *end, watch, prefixes.release)
        groups.extend(own)
        for branch, answer in zip(wave, answers, strict=True):
            tokens[branch] = answer

    limit = path.limit() if max_branch_bytes is None else max_branch_bytes
    in_waves(path.sizes(unique), limit, run, say, path.give_back)
    if traces is not None:
        steps = [max(0, len(answer) - 1) for answer in tokens]
        collected = collect(groups, steps, prefill.key_stack.shape[0])
        traces.extend(collected[index] for index in owner)
    return [list(tokens[index]) for index in owner]


def _run(
    path: Compact,
    kept: list,
    max_new_tokens: int,
    stop_ids,
    finished,
    watch,
    built=None,
    interval: int | None = None,
) -> list[list[int]]:
    """Tokens of distinct branches. watch(branches that go on after the first token) gives the watchers.

    built: called when the cache holds what it needs of the prompt. interval: steps between two looks at the
    tokens; branches that end in between drop what came after. None: what suits the device.
    """
    prefill = path.prefill
    if interval is None:
        interval = GPU_INTERVAL if prefill.logits.device.type == "cuda" else CPU_INTERVAL
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
        cache, step = path.start([kept[b] for b in active], watchers)
        if built is not None:
            built()
        with speculation(path.adapter.model, watchers, cache.layers):
            _steps(step, prefill, cache, active, tokens, accept, max_new_tokens - 1, interval)
    return tokens


def _consult(
    adapter, prefill: Prefill, kept, plans, prefixes: Prefixes, end, trace: bool
) -> tuple[list, list]:
    """(kept, plans) with the oracles' selections, from one uncompressed decode, in place of the first."""
    asked = {(plan.window, plan.policy.group): None for plan in plans if is_oracle(plan)}
    recorder = Recorder(prefixes[False], list(asked))
    # The recorder averages over the answer's own steps, so no step may come after its end.
    path = Compact(adapter, prefill, end[0])
    _run(path, [None], *end, lambda active: [recorder], interval=1)
    kept, plans = list(kept), list(plans)
    for i, plan in enumerate(plans):
        if is_oracle(plan):
            if recorder.steps:  # an answer of one token never attends to the cache
                kept[i] = recorder.select(plan)
            plans[i] = Plan(None, plan.window, plan.selected) if trace else None
    return kept, plans


def _steps(
    step: Step,
    prefill: Prefill,
    cache: CompactCache | RaggedCache,
    active: list[int],
    tokens,
    accept,
    steps: int,
    interval: int,
) -> None:
    """Advance the active branches, at most `steps` tokens each, until none is left."""
    device = prefill.logits.device
    latest = torch.tensor([tokens[b][-1] for b in active], device=device)
    position = prefill.next_position
    for start in range(0, steps, interval):
        chosen = []
        for _ in range(min(interval, steps - start)):
            latest = step(latest, position).argmax(-1)
            cache.advance()
            position += 1
            chosen.append(latest)
        rows = torch.stack(chosen, 1).tolist()
        # all() ends with the first token that is not accepted: what a branch made after its end is dropped.
        going = [all(accept(b, token) for token in row) for b, row in zip(active, rows, strict=True)]
        if not all(going):
            stay = [i for i, goes_on in enumerate(going) if goes_on]
            if not stay:
                return
            cache.retain(stay)
            active = [active[i] for i in stay]
            latest = latest[torch.tensor(stay, device=device)]


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
