"""Greedy decode of all branches of a sample as one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from kvbench.engine.cache import CompactCache, Watcher
from kvbench.engine.oracle import Recorder, is_oracle
from kvbench.engine.paths import Compact, Step, choose
from kvbench.engine.prefill import Prefill, not_finite
from kvbench.engine.prefix import Prefixes
from kvbench.engine.ragged import RaggedCache
from kvbench.engine.refresh import Plan, collect, make_groups
from kvbench.engine.speculate import speculation
from kvbench.engine.waves import in_waves
from kvbench.errors import UserError
from kvbench.store.trace import Trace

# Decode steps between two looks at the tokens. On a GPU a look makes the host wait for the device.
CPU_INTERVAL, GPU_INTERVAL = 1, 8
NO_TOKEN = -1  # in place of a token whose logits are NaN or infinite


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
    log: Callable[[str], None] = print,
    compiled: bool = False,
    cache: str = "auto",
) -> list[list[int] | UserError]:
    """Tokens of every branch, the stop token included; in their place, what made a branch fail alone.

    kept: per branch the ascending prompt positions per layer and KV head; None keeps the whole prompt
    (FullKV). A branch ends with a token of `stop_ids`, after `max_new_tokens`, or when `finished(tokens)`
    says so, and leaves the batch at once. Branches with equal kept sets and plans are decoded once.
    plans: per branch how it refreshes, see kvbench.engine.refresh. traces: an empty list, filled with a Trace
    per branch; every branch then needs a plan. max_branch_bytes: branches that hold more together decode in
    waves, with 0 each by itself; None: half of the free memory. log: told when memory ran out and smaller
    waves are tried. compiled: the step as one graph (kvbench.engine.compiled). cache: compact, ragged or
    auto, see kvbench.engine.paths. A sample with a branch that refreshes has the compact one and is not
    compiled.
    """
    stop_ids = frozenset(stop_ids)
    end = (max_new_tokens, stop_ids, finished)
    plans = [None] * len(kept) if plans is None else list(plans)
    prefixes = Prefixes(prefill)
    oracles = [is_oracle(plan) for plan in plans]
    untold = None  # why there is no uncompressed answer for the oracles to learn from
    if any(oracles):
        kept, plans, untold = _consult(adapter, prefill, kept, plans, prefixes, end, traces is not None)
    unique, unique_plans, owner = _deduplicate(kept, plans, prefill.length)
    prefixes.prepare(unique_plans)
    path = choose(adapter, prefill, max_new_tokens, any(unique_plans), cache, compiled)
    groups = []
    answers: dict[int, list[int] | UserError] = {}

    def run(wave: list[int]) -> None:
        own = []

        def watch(active: list[int]) -> list[Watcher]:
            branches = [wave[i] for i in active]
            chosen = [unique[b] for b in branches], [unique_plans[b] for b in branches], branches
            own.extend(make_groups(prefixes, *chosen, traces is not None))
            return own

        found = _run(path, [unique[b] for b in wave], *end, watch, prefixes.release)
        groups.extend(own)
        answers.update(zip(wave, found, strict=True))

    limit = path.limit() if max_branch_bytes is None else max_branch_bytes
    in_waves(path.sizes(unique), limit, run, log, path.give_back)
    if traces is not None:
        traces.extend(_traces(groups, answers, owner, prefill.key_stack.shape[0]))
    found = [list(a) if isinstance(a, list) else a for a in (answers[index] for index in owner)]
    return [untold if untold and oracle else a for a, oracle in zip(found, oracles, strict=True)]


def _traces(
    groups: list, answers: dict[int, list[int] | UserError], owner: list[int], layers: int
) -> list[Trace]:
    """The trace of every branch; a branch that failed has no steps."""
    ended = [answers[index] for index in range(len(answers))]
    steps = [max(0, len(answer) - 1) if isinstance(answer, list) else 0 for answer in ended]
    collected = collect(groups, steps, layers)
    return [collected[index] for index in owner]


def _run(
    path: Compact,
    kept: list,
    max_new_tokens: int,
    stop_ids,
    finished,
    watch,
    built=None,
    interval: int | None = None,
) -> list[list[int] | UserError]:
    """As `decode`, of distinct branches. watch(those that go on after the first token) gives the watchers.

    built: called when the cache holds what it needs of the prompt. interval: steps between two looks at the
    tokens; branches that end in between drop what came after. None: what suits the device.
    """
    prefill = path.prefill
    if interval is None:
        interval = GPU_INTERVAL if prefill.logits.device.type == "cuda" else CPU_INTERVAL
    answers = _Answers(path.adapter, len(kept), max_new_tokens, stop_ids, finished)
    first = int(prefill.logits.argmax())  # prefill is exact, so every branch starts with the same token
    active = [b for b in range(len(kept)) if max_new_tokens > 0 and answers.accept(b, first)]
    if active:
        watchers = watch(active)
        cache, step = path.start([kept[b] for b in active], watchers)
        if built is not None:
            built()
        with speculation(path.adapter.model, watchers, cache.layers):
            _steps(step, prefill, cache, watchers, active, answers, max_new_tokens - 1, interval)
    return answers.outcome()


class _Answers:
    """The tokens of each branch so far, and why branches failed."""

    def __init__(self, adapter, branches: int, max_new_tokens: int, stop_ids, finished):
        self.adapter, self.limit, self.stop_ids, self.finished = adapter, max_new_tokens, stop_ids, finished
        self.tokens: list[list[int]] = [[] for _ in range(branches)]
        self.errors: dict[int, UserError] = {}

    def accept(self, branch: int, token: int) -> bool:
        """Append a token; True while the branch goes on."""
        if token == NO_TOKEN:
            self.errors[branch] = not_finite(self.adapter)
            return False
        tokens = self.tokens[branch]
        tokens.append(token)
        if token in self.stop_ids or len(tokens) >= self.limit:
            return False
        return not (self.finished is not None and self.finished(tokens))

    def outcome(self) -> list[list[int] | UserError]:
        """Per branch its tokens, or why it has none."""
        return [self.errors.get(branch, tokens) for branch, tokens in enumerate(self.tokens)]


def _consult(
    adapter, prefill: Prefill, kept, plans, prefixes: Prefixes, end, trace: bool
) -> tuple[list, list, UserError | None]:
    """(kept, plans) with the oracles' selections, from one uncompressed decode; why it failed, if it did."""
    asked = {(plan.window, plan.policy.group): None for plan in plans if is_oracle(plan)}
    recorder = Recorder(prefixes[False], list(asked))
    # The recorder averages over the answer's own steps, so no step may come after its end.
    path = Compact(adapter, prefill, end[0])
    (full,) = _run(path, [None], *end, lambda active: [recorder], interval=1)
    error = None if isinstance(full, list) else full
    kept, plans = list(kept), list(plans)
    for i, plan in enumerate(plans):
        if is_oracle(plan):
            if recorder.steps and error is None:  # an answer of one token never attends to the cache
                kept[i] = recorder.select(plan)
            plans[i] = Plan(None, plan.window, plan.selected) if trace else None
    return kept, plans, error


def _steps(
    step: Step,
    prefill: Prefill,
    cache: CompactCache | RaggedCache,
    watchers: Sequence[Watcher],
    active: list[int],
    answers: _Answers,
    steps: int,
    interval: int,
) -> None:
    """Advance the active branches, at most `steps` tokens each, until none is left."""
    device = prefill.logits.device
    latest = torch.tensor([answers.tokens[b][-1] for b in active], device=device)
    position = prefill.next_position
    for start in range(0, steps, interval):
        chosen = []
        for _ in range(min(interval, steps - start)):
            latest, checked = _choose(step(latest, position))
            cache.advance()
            position += 1
            chosen.append(checked)
        rows = torch.stack(chosen, 1).tolist()
        # all() ends with the first token that is not accepted: what a branch made after its end is dropped.
        going = [all(answers.accept(b, t) for t in row) for b, row in zip(active, rows, strict=True)]
        for watcher in watchers:
            for i, error in watcher.failures().items():
                answers.errors.setdefault(active[i], error)
                going[i] = False
        if not all(going):
            stay = [i for i, goes_on in enumerate(going) if goes_on]
            if not stay:
                return
            cache.retain(stay)
            active = [active[i] for i in stay]
            latest = latest[torch.tensor(stay, device=device)]


def _choose(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[B, vocab] -> ([B] the greedy tokens, [B] the same with NO_TOKEN where none can be chosen).

    argmax prefers NaN to every number, so the chosen logit says whether there is one.
    """
    tokens = logits.argmax(-1)
    best = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return tokens, tokens.where(best.isfinite(), NO_TOKEN)


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
