"""Decode-time re-selection: rewriting the selected prefix slots of a branch before a step's attention.

Branches under the same policy form a group and own one bucket per layer of the compact cache, laid out as
[selected prefix | window | generated]. They may differ in first selection, tau, rho and eta; each has its
own tau. The full prefix is held once per sample. Nothing here waits for the device, unless `branching` or
`offload` ask for it.

Shapes: B branches of a group, H KV heads, G query heads per KV head, c selected entries, P the prompt
without the window, N_p its length, d the head dimension.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvbench.engine.prefill import Prefill
from kvbench.engine.trace import FIELDS, Trace
from kvbench.errors import UserError
from kvbench.methods.refresh.base import Cost, Reselect
from kvbench.methods.refresh.oracle import Oracle

KeptSet = list[list[Tensor]]


@dataclass(frozen=True)
class Plan:
    """What happens to one branch while it decodes. policy None: nothing, the plan only serves tracing."""

    policy: Reselect | None
    window: int
    selected: int  # c


def plan_of(method, length: int, head_dim: int, trace: bool) -> Plan | None:
    """The plan of a method for a prompt of `length`; None when nothing is refreshed or recorded.

    Raises UserError when the policy does not go with the prompt or the model.
    """
    policy = method.refresh
    if policy is not None:
        policy.check_model(head_dim)
        policy.check_prompt(length, method.window)
        if method.budget < length:
            return Plan(policy, method.window, policy.layout(method.window, method.budget))
    if not trace:
        return None
    window = min(32 if method.full else method.window, length - 1)
    return Plan(None, window, 32 if method.full else max(1, method.budget - method.window))


class Prefix:
    """The full prompt of one sample, shared by all groups, on the device or (offload) in CPU memory."""

    def __init__(self, prefill: Prefill, offload: bool):
        self.device, self.offload = prefill.logits.device, offload
        self.keys, self.values = prefill.key_stack, prefill.value_stack  # [L, H, N, d]
        if offload and self.device.type == "cuda":
            self.keys, self.values = (t.cpu().pin_memory() for t in (self.keys, self.values))
        self.query_basis = prefill.query_basis
        self.layers, self.heads, self.length, _ = self.keys.shape
        self.vectors_read = (
            0  # from the full prefix while decoding, set-up not counted; only kept with offload
        )
        self._memo: dict[Hashable, Any] = {}

    def memo(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Compute once per sample."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def keys_of(self, layer: int, count: int) -> Tensor:
        """[H, count, d] the first keys of a layer, on the device."""
        return self.keys[layer, :, :count].to(self.device, non_blocking=True)

    def gather(self, source: Tensor, layer: int, positions: Tensor) -> Tensor:
        """Entries of self.keys or self.values at positions [B, H, k] -> [B, H, k, d], on the device."""
        if self.offload:
            positions = positions.to(source.device)
            self.vectors_read += positions.numel()
        start = torch.arange(self.heads, device=positions.device).view(-1, 1) * self.length
        flat = source[layer].reshape(-1, source.shape[-1])
        return flat[positions + start].to(self.device, non_blocking=True)


class Step:
    """What a policy sees of one layer at one decode step, for the branches of a group."""

    def __init__(
        self,
        prefix: Prefix,
        layer: int,
        count: int,
        query: Tensor,
        held: Tensor,
        positions: Tensor | None,
        selected: int,
        scaling: float,
        guess: Tensor | None = None,
    ):
        self.prefix, self.layer, self.scaling = prefix, layer, scaling
        self.count = count  # N_p
        self.query = query  # [B, H, G, d] the current step's, post-RoPE
        self.held = (
            held  # [B, H, entries, d] keys in the cache: selected (when positions are given), then the rest
        )
        self.positions = positions  # [B, H, c] ascending, what the selected slots hold; None: no such slots
        self.selected = selected  # c
        self.guess = guess  # [B, H, G, d] query speculated from the previous layer
        self._memo: dict[str, Tensor] = {}

    def memo(self, key: str, make: Callable[[], Tensor]) -> Tensor:
        """Compute once; every value leads with the branch dimension."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def only(self, branches: Tensor) -> Step:
        """The step as these branches (int64 indices) see it."""
        if len(branches) == self.query.shape[0]:
            return self
        guess = None if self.guess is None else self.guess[branches]
        part = Step(
            self.prefix, self.layer, self.count, self.query[branches], self.held[branches],
            self.positions[branches], self.selected, self.scaling, guess,
        )  # fmt: skip
        part._memo = {key: value[branches] for key, value in self._memo.items()}
        return part

    def speculated(self) -> Step:
        """The step with the speculated query in place of the current one (itself in the first layer)."""
        if self.guess is None:
            return self
        guess, layout = self.guess, (self.held, self.positions, self.selected)
        return Step(self.prefix, self.layer, self.count, guess, *layout, self.scaling)

    # Logits ----------------------------------------

    def against(self, query: Tensor, keys: Tensor) -> Tensor:
        """[B, H, G, n] fp32 scaled products of query [B, H, G, r] with keys [H, n, r] of all branches."""
        batch, heads, group, dim = query.shape
        flat = query.transpose(0, 1).reshape(heads, batch * group, dim)
        logits = (flat @ keys.transpose(1, 2)).float() * self.scaling
        return logits.view(heads, batch, group, -1).transpose(0, 1)

    @property
    def held_logits(self) -> Tensor:
        """[B, H, G, entries] exact logits of everything in the cache, the step's own token included."""
        make = lambda: (self.query @ self.held.transpose(-1, -2)).float() * self.scaling  # noqa: E731
        return self.memo("held", make)

    @property
    def rest(self) -> Tensor:
        """[B, H, G] log-sum-exp of the logits outside P: window and generated entries."""
        first = 0 if self.positions is None else self.selected
        return self.memo("rest", lambda: self.held_logits[..., first:].logsumexp(-1))

    @property
    def exact_logits(self) -> Tensor:
        """[B, H, G, N_p] exact logits of the prefix."""

        def make() -> Tensor:
            if self.prefix.offload:
                self.prefix.vectors_read += self.prefix.heads * self.count
            return self.against(self.query, self.prefix.keys_of(self.layer, self.count))

        return self.memo("exact", make)

    def place_held(self, logits: Tensor) -> Tensor:
        """Prefix logits [B, H, G, N_p] with the exact ones put in at the positions that are held."""
        wide = self.positions.unsqueeze(2).expand(-1, -1, logits.shape[2], -1)
        return logits.scatter(-1, wide, self.held_logits[..., : self.selected])

    def score_at(self, positions: Tensor) -> Tensor:
        """[B, H, G, k] exact logits at ascending positions [B, H, k], whose keys are remembered."""
        keys = self.prefix.gather(self.prefix.keys, self.layer, positions)
        self._memo["fetched positions"], self._memo["fetched keys"] = positions, keys
        return (self.query @ keys.transpose(-1, -2)).float() * self.scaling

    def entries(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """([B, H, c, d], [B, H, c, d]) keys and values at positions; fetched keys are not read again."""
        known = self._memo.get("fetched positions")
        if known is None:
            keys = self.prefix.gather(self.prefix.keys, self.layer, positions)
        else:
            at = torch.searchsorted(known, positions).unsqueeze(-1)
            fetched = self._memo["fetched keys"]
            keys = fetched.gather(2, at.expand(-1, -1, -1, fetched.shape[-1]))
        return keys, self.prefix.gather(self.prefix.values, self.layer, positions)

    # Attention ----------------------------------------

    def attention(self, logits: Tensor, rest: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(softmax probabilities [B, H, G, n], log of their normaliser [B, H, G]).

        The softmax runs over `logits` and, behind them, everything that `rest` (log-sum-exp; default:
        window and generated entries) stands for.
        """
        rest = self.rest if rest is None else rest
        peak = torch.maximum(logits.amax(-1), rest)
        weights = (logits - peak.unsqueeze(-1)).exp_()
        total = weights.sum(-1) + (rest - peak).exp()
        return weights.div_(total.unsqueeze(-1)), peak + total.log()

    def prefix_attention(self, logits: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """attention() of the one set of prefix logits that a triggered policy works with, computed once."""
        if "shares" not in self._memo:
            self._memo["shares"], self._memo["normaliser"] = self.attention(logits())
        return self._memo["shares"], self._memo["normaliser"]

    @staticmethod
    def reduce(shares: Tensor, group: str) -> Tensor:
        """[B, H, G, n] -> [B, H, n] over the query heads of a KV head; all options but max take the mean."""
        return shares.amax(2) if group == "max" else shares.mean(2)

    def shares(self, logits: Tensor, group: str, rest: Tensor | None = None) -> Tensor:
        """[B, H, n] what ranks entries: reduced probabilities, or with group=logits the mean logits."""
        if group == "logits":
            return logits.mean(2)
        return self.reduce(self.attention(logits, rest)[0], group)

    def evicted_mass(self, shares: Tensor, group: str, held: Tensor | None = None) -> Tensor:
        """[B] drift: attention mass on prefix entries that are not held, reduced over G, mean over KV heads.

        shares: [B, H, G, N_p] probabilities. held: bool [B, H, N_p], for branches whose heads hold
        different numbers of entries.
        """
        if held is not None:
            shares = shares.masked_fill(held.unsqueeze(2), 0)
        else:
            shares = shares.scatter(-1, self.positions.unsqueeze(2).expand(-1, -1, shares.shape[2], -1), 0)
        mass = shares.sum(-1)
        return (mass.amax(2) if group == "max" else mass.mean(2)).mean(1)

    @staticmethod
    def top(scores: Tensor, count: int) -> Tensor:
        """[..., count] ascending positions of the highest scores [..., n]; ties go to the lower position."""
        length = scores.shape[-1]
        if count >= length:
            return torch.arange(length, device=scores.device).expand_as(scores)
        if (
            scores.device.type == "cpu"
        ):  # looking costs nothing here: without a tie at the edge, topk is right
            best = scores.topk(count + 1)
            if bool((best.values[..., -2] > best.values[..., -1]).all()):
                return best.indices[..., :-1].sort(-1).values
        least = scores.topk(count).values[..., -1:]
        level = scores == least
        spare = count - (scores > least).sum(-1, keepdim=True)
        chosen = (scores > least) | (level & (level.cumsum(-1) <= spare))
        # Distinct ranks that fall with the position, and nothing to wait for, unlike nonzero().
        ranks = torch.arange(length, 0, -1, device=scores.device, dtype=torch.int32)
        return (chosen * ranks).topk(count).indices


class Group:
    """Branches that decode under one policy; each owns its positions and its tau."""

    def __init__(
        self,
        prefix: Prefix,
        plan: Plan,
        members: list[tuple[int, int, KeptSet | None, Reselect | None]],
        trace: bool,
    ):
        """members: per branch its cache number, its label for traces, its kept set and its policy."""
        self.prefix, self.policy, self.window, self.selected = prefix, plan.policy, plan.window, plan.selected
        self.count = prefix.length - plan.window
        self.branches = [number for number, *_ in members]
        self.labels = [label for _, label, *_ in members]
        self.guess: Tensor | None = None
        self.positions: list[Tensor] | None = None
        self.masks: list[Tensor] | None = None
        kept = [sets for _, _, sets, _ in members]
        if self.policy is not None:
            self.positions = [self._selected(kept, layer) for layer in range(prefix.layers)]
        else:
            self.masks = [self._mask(kept, layer) for layer in range(prefix.layers)]
        policies = [policy for *_, policy in members]
        self.tau, self.rho, self.eta = (
            torch.tensor(
                [getattr(p, name, missing) for p in policies], dtype=torch.float32, device=prefix.device
            )
            for name, missing in (("tau", float("nan")), ("rho", 0.0), ("eta", 0.0))
        )
        dim = prefix.keys.shape[-1]
        self.cost = Cost() if self.policy is None else self.policy.cost(self.count, dim, self.selected)
        self.trace = trace
        self._leaders: dict[int, Tensor] = {}  # per layer [B, H], the most attended position of the last step
        self._rows: list[Tensor] = []  # of the step so far, [fields, B] per layer
        self.records: list[tuple[list[int], Tensor]] = []  # per step: labels, [L, fields, B]

    @property
    def speculates(self) -> bool:
        """True when the policy wants queries guessed from the previous layer."""
        return self.policy is not None and self.policy.speculates

    def _selected(self, kept: list[KeptSet], layer: int) -> Tensor:
        return torch.stack([torch.stack([h[: self.selected] for h in sets[layer]]) for sets in kept]).to(
            self.prefix.device
        )

    def _mask(self, kept: list[KeptSet | None], layer: int) -> Tensor:
        mask = torch.zeros(len(kept), self.prefix.heads, self.prefix.length, dtype=torch.bool)
        for branch, sets in enumerate(kept):
            for head in range(self.prefix.heads):
                mask[branch, head, slice(None) if sets is None else sets[layer][head].cpu()] = True
        return mask[..., : self.count].to(self.prefix.device)

    def before(self, layer: int, bucket, end: int, query: Tensor, scaling: float) -> None:
        """Refresh the bucket's selected slots, in place, before its rows attend.

        bucket: this group's rows of the layer, the step's own token stored. end: slots + generated entries.
        query [B*H, 1, G, d].
        """
        batch = len(self.branches)
        query = query.view(batch, -1, *query.shape[2:])
        keys, values = (t.view(batch, -1, *t.shape[1:]) for t in (bucket.keys, bucket.values))
        held = keys[:, :, :end]
        if self.policy is None:
            window = self.prefix.keys[layer, :, self.count :].to(query.device).expand(batch, -1, -1, -1)
            held = torch.cat([window, keys[:, :, bucket.slots : end]], 2)
        positions = None if self.positions is None else self.positions[layer]
        step = Step(
            self.prefix, layer, self.count, query, held, positions, self.selected, scaling, self.guess
        )  # fmt: skip
        seen = self._look(step) if self.trace else None
        tau, fire, drift = self.tau, None, None
        if self.policy is not None and self.policy.triggered:
            drift = self.policy.drift(step)
            fire = drift > tau
            self.tau = tau * torch.exp(self.eta * (fire.float() - self.rho))
        if self.policy is not None:
            self._rewrite(step, fire, keys, values)
        if seen is not None:
            self._record(layer, step, seen, drift, tau, fire)

    def _rewrite(self, step: Step, fire: Tensor | None, keys: Tensor, values: Tensor) -> None:
        """Put the proposed selection into the slots of every branch, or of those that fire."""
        layer, size = step.layer, self.selected
        if fire is not None and (self.policy.offload or self.policy.branching):
            chosen = fire.nonzero().flatten()  # the host waits here, to skip what is not needed
            if not len(chosen):
                return
            part = step.only(chosen)
            proposed = self.policy.propose(part)
            keys[chosen, :, :size], values[chosen, :, :size] = part.entries(proposed)
            self.positions[layer] = self.positions[layer].index_copy(0, chosen, proposed)
            return
        proposed = self.policy.propose(step)
        new_keys, new_values = step.entries(proposed)
        if fire is not None:
            yes = fire.view(-1, 1, 1)
            proposed = torch.where(yes, proposed, self.positions[layer])
            new_keys = torch.where(yes.unsqueeze(-1), new_keys, keys[:, :, :size])
            new_values = torch.where(yes.unsqueeze(-1), new_values, values[:, :, :size])
        keys[:, :, :size], values[:, :, :size] = new_keys, new_values
        self.positions[layer] = proposed

    # Traces ----------------------------------------

    def _look(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """(exact top entries [B, H, k], most attended position [B, H], drift [B]) before the refresh."""
        group = "mean" if self.policy is None else self.policy.group
        probabilities, _ = step.attention(step.exact_logits)
        shares = step.exact_logits.mean(2) if group == "logits" else step.reduce(probabilities, group)
        best = step.top(shares, min(self.selected, self.count))
        held = None if self.masks is None else self.masks[step.layer]
        return best, shares.argmax(-1), step.evicted_mass(probabilities, group, held)

    def _record(self, layer: int, step: Step, seen, drift, tau, fire) -> None:
        best, leader, exact_drift = seen
        held = torch.zeros(*best.shape[:2], self.count, dtype=torch.bool, device=best.device)
        held = self.masks[layer] if self.masks is not None else held.scatter(-1, self.positions[layer], True)
        overlap = held.gather(-1, best).float().mean((1, 2))
        before = self._leaders.get(layer)
        self._leaders[layer] = leader
        stayed = (
            torch.full_like(overlap, float("nan")) if before is None else (before == leader).float().mean(1)
        )
        always = self.policy is not None
        fired = torch.full_like(overlap, float(always)) if fire is None else fire.float()
        values = {
            "drift": exact_drift if drift is None else drift,
            "tau": tau,
            "refreshed": fired,
            "reads": self.cost.scanned + fired * self.cost.fetched,
            "dots": torch.full_like(overlap, self.cost.dots),
            "overlap": overlap,
            "stayed": stayed,
        }
        self._rows.append(torch.stack([values[name] for name in FIELDS]))
        if len(self._rows) == self.prefix.layers:
            self.records.append((self.labels, torch.stack(self._rows)))
            self._rows = []

    def retain(self, stay: list[int]) -> None:
        """Drop all branches but these cache numbers; they are renumbered 0, 1, ..."""
        local = [i for i, number in enumerate(self.branches) if number in stay]
        changed = len(local) < len(self.branches)
        self.branches = [stay.index(self.branches[i]) for i in local]
        if not changed:
            return
        self.labels = [self.labels[i] for i in local]
        at = torch.tensor(local, dtype=torch.int64, device=self.prefix.device)
        self.tau, self.rho, self.eta = self.tau[at], self.rho[at], self.eta[at]
        self._leaders = {layer: leader[at] for layer, leader in self._leaders.items()}
        self.positions = None if self.positions is None else [p[at] for p in self.positions]
        self.masks = None if self.masks is None else [m[at] for m in self.masks]


class Recorder:
    """Averages the attention that an uncompressed decode pays to the prefix, for the prefill oracle."""

    speculates = False

    def __init__(self, prefix: Prefix, wanted: list[tuple[int, str]]):
        """wanted: the (window, group) pairs to average for."""
        self.prefix, self.branches = prefix, [0]
        self.sums = {
            (window, group): torch.zeros(
                prefix.layers, prefix.heads, prefix.length - window, device=prefix.device
            )
            for window, group in wanted
        }
        self.steps = 0

    def before(self, layer: int, bucket, end: int, query: Tensor, scaling: float) -> None:
        """Add one step of one layer."""
        query = query.view(1, -1, *query.shape[2:])
        self.steps += layer == 0
        for (window, group), total in self.sums.items():
            held = bucket.keys[None, :, bucket.slots - window : end]
            step = Step(self.prefix, layer, total.shape[-1], query, held, None, 0, scaling)
            total[layer] += step.shares(step.exact_logits, group)[0]

    def retain(self, stay: list[int]) -> None:
        """The only branch cannot be dropped."""

    def select(self, plan: Plan) -> KeptSet:
        """The top entries by mean attention, and the window."""
        best = Step.top(self.sums[plan.window, plan.policy.group], plan.selected)
        window = torch.arange(self.prefix.length - plan.window, self.prefix.length, device=best.device)
        return [[torch.cat([head, window]) for head in layer] for layer in best]


class Prefixes:
    """The shared prefixes of a sample, made when first asked for."""

    def __init__(self, prefill: Prefill):
        self._prefill, self._made = prefill, {}

    def __getitem__(self, offload: bool) -> Prefix:
        if offload not in self._made:
            self._made[offload] = Prefix(self._prefill, offload)
        return self._made[offload]

    def prepare(self, plans: list[Plan | None]) -> None:
        """Make those that plans need, so that none is asked for after `release`."""
        for plan in plans:
            if plan is not None:
                self[plan.policy is not None and plan.policy.offload]

    @property
    def host_only(self) -> Prefix | None:
        """The prefix in CPU memory, when no one needs one on the device."""
        return self._made.get(True) if False not in self._made else None

    def release(self) -> None:
        """Let go of the device's copy of the prompt when only the one in CPU memory is still needed."""
        host = self.host_only
        if host is not None:
            self._prefill.key_stack, self._prefill.value_stack = host.keys, host.values


def make_groups(
    prefixes: Prefixes, kept: list[KeptSet | None], plans: list[Plan | None], labels: list[int], trace: bool
) -> list[Group]:
    """Group the branches (cache numbers 0, 1, ...) that can refresh together; no plan, no group."""
    groups: dict[Hashable, tuple[Plan, list]] = {}
    for number, (sets, plan, label) in enumerate(zip(kept, plans, labels, strict=True)):
        if plan is None:
            continue
        if plan.policy is None:
            key: Hashable = number  # heads may hold different numbers of entries: a bucket of its own
        else:
            alike = {name: 0.0 for name in plan.policy.per_branch if hasattr(plan.policy, name)}
            key = dataclasses.replace(plan, policy=dataclasses.replace(plan.policy, **alike))
        groups.setdefault(key, (plan, []))[1].append((number, label, sets, plan.policy))
    return [
        Group(prefixes[plan.policy is not None and plan.policy.offload], plan, members, trace)
        for plan, members in groups.values()
    ]


def is_oracle(plan: Plan | None) -> bool:
    """True when the branch's selection comes from an uncompressed decode."""
    return plan is not None and isinstance(plan.policy, Oracle)


def collect(groups: list[Group], steps: list[int], layers: int) -> list[Trace]:
    """The traces of all labels 0, 1, ..., each over its number of steps; one transfer per group."""
    parts: list[list[Tensor]] = [[] for _ in steps]
    costs = [Cost()] * len(steps)
    for group in groups:
        if not group.records:
            continue
        flat = torch.cat([values.flatten() for _, values in group.records]).cpu()
        sizes = [values.numel() for _, values in group.records]
        for (labels, values), piece in zip(group.records, flat.split(sizes), strict=True):
            piece = piece.view(values.shape)
            for column, label in enumerate(labels):
                parts[label].append(piece[:, :, column])
                costs[label] = group.cost
    empty = torch.zeros(0, layers, len(FIELDS))
    return [
        Trace.from_values((torch.stack(part[:count]) if part[:count] else empty).numpy(), cost.held)
        for part, count, cost in zip(parts, steps, costs, strict=True)
    ]


@contextmanager
def speculation(model, groups: list[Group], layers: int) -> Iterator[None]:
    """Inside the block every layer's query is also guessed from the previous layer's attention input.

    Works for any family: the layer's own attention module runs on that input, with a state that only looks.
    """
    groups = [g for g in groups if g.speculates]
    if not groups:
        yield
        return
    modules = [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "o_proj")]
    if len(modules) != layers:
        raise UserError(
            "refresh `infinigen` cannot tell this model's attention layers: set refresh.query=current."
        )
    previous: dict[str, Tensor] = {}

    def hook(module, args, kwargs):
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        guess = None
        if module.layer_idx > 0:
            probe = _Probe()
            inputs = {**kwargs, "kv_state": probe}
            if "hidden_states" in kwargs:
                module.forward(*args, **{**inputs, "hidden_states": previous["input"]})
            else:
                module.forward(previous["input"], *args[1:], **inputs)
            guess = probe.query
        previous["input"] = hidden
        for group in groups:
            if guess is None or not group.branches:
                group.guess = None
            else:
                part = guess[torch.tensor(group.branches, device=guess.device)]
                group.guess = part.reshape(len(part), group.prefix.heads, -1, part.shape[-1])

    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Probe:
    """An attention state that keeps the query and attends to nothing."""

    query: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.query = query
        return torch.zeros_like(query).transpose(1, 2)
