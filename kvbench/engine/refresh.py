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
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.engine.prefix import Prefix, Prefixes
from kvbench.engine.step import Step
from kvbench.errors import UserError, without_frames
from kvbench.methods import contract
from kvbench.methods.refresh.base import Cost, Reselect
from kvbench.store.trace import FIELDS, Trace

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
        self.error: UserError | None = None  # what the policy raised; it is then asked no more
        self.unsound = torch.zeros(len(members), dtype=torch.bool, device=prefix.device)
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
        query [B*H, 1, G, d]. A policy that raises is kept in `error`, for `failures`.
        """
        if self.error is not None:
            return
        try:
            self._refresh(layer, bucket, end, query, scaling)
        except UserError as error:
            self.error = without_frames(error)

    def failures(self) -> dict[int, UserError]:
        """Why branches cannot go on, by cache number. Waits for the device."""
        if self.error is not None:
            return dict.fromkeys(self.branches, self.error)
        if self.policy is None or not bool(self.unsound.any()):
            return {}
        error = contract.no_positions(self.policy, self.count)
        return {n: error for n, bad in zip(self.branches, self.unsound.tolist(), strict=True) if bad}

    def _refresh(self, layer: int, bucket, end: int, query: Tensor, scaling: float) -> None:
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
            drift = contract.drift(self.policy, step)
            self.unsound |= ~drift.isfinite()
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
            proposed = self._proposed(part, chosen)
            keys[chosen, :, :size], values[chosen, :, :size] = part.entries(proposed)
            self.positions[layer] = self.positions[layer].index_copy(0, chosen, proposed)
            return
        proposed = self._proposed(step)
        new_keys, new_values = step.entries(proposed)
        if fire is not None:
            yes = fire.view(-1, 1, 1)
            proposed = torch.where(yes, proposed, self.positions[layer])
            new_keys = torch.where(yes.unsqueeze(-1), new_keys, keys[:, :, :size])
            new_values = torch.where(yes.unsqueeze(-1), new_values, values[:, :, :size])
        keys[:, :, :size], values[:, :, :size] = new_keys, new_values
        self.positions[layer] = proposed

    def _proposed(self, step: Step, chosen: Tensor | slice = slice(None)) -> Tensor:
        """[B, H, c] what the policy proposes to the chosen branches; those that cannot hold it are noted."""
        proposed = contract.proposal(self.policy, step)
        self.unsound[chosen] |= contract.unsound(proposed, self.count)
        return proposed.clamp(0, self.count - 1)  # no read out of bounds until the branch is dropped

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
        self.unsound = self.unsound[at]
        self._leaders = {layer: leader[at] for layer, leader in self._leaders.items()}
        self.positions = None if self.positions is None else [p[at] for p in self.positions]
        self.masks = None if self.masks is None else [m[at] for m in self.masks]


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
