"""Re-selection and its traces against a decode written as loops over steps, layers, heads and query heads.

The loop keeps the whole cache as tensors of its own and shares no code with the engine or the policies.
"""

import math

import numpy as np
import pytest
import tinyllama
import torch

from kvbench.engine import generate, prefill
from kvbench.engine.generate import observe
from kvbench.methods import build
from kvbench.methods.select import kept_mask

LAYERS, HEADS, GROUP, DIM = 3, 2, 2, 16
WINDOW, SELECTED, LENGTH, NEW = 8, 16, 90, 12
PREFIX = LENGTH - WINDOW


@pytest.fixture(scope="module")
def llama():
    return tinyllama.adapter(LAYERS, HEADS, GROUP, DIM)


def inputs_of(adapter, seed=0, length=LENGTH):
    generator = torch.Generator().manual_seed(seed)
    return adapter.text_inputs(torch.randint(2, 97, (length,), generator=generator).tolist())


def method(refresh=None, name="snapkv+bacon", budget=WINDOW + SELECTED):
    return build({"name": name, "window": WINDOW, "refresh": refresh}, budget)


def reduced(rows, group):
    """Over the query heads of a KV head: [[n] per head] -> [n]."""
    return torch.stack(rows).amax(0) if group == "max" else torch.stack(rows).mean(0)


def best(weights, count):
    order = sorted(range(len(weights)), key=lambda i: (-float(weights[i]), i))
    return sorted(order[:count])


class Loop:
    """The state of one branch: everything ever seen, what is held of the prefix, tau, and the trace."""

    def __init__(self, prompt, held, policy):
        self.keys, self.values = (
            [list(layer) for layer in stack] for stack in (prompt.key_stack, prompt.value_stack)
        )
        self.held = held  # [layer][head] positions of the prefix
        self.name, self.group = policy.get("name", "none"), policy.get("group", "mean")
        self.exact = self.name == "threshold" and policy["detector"] == "exact"
        self.rank, self.pool = policy.get("rank", 8), policy.get("candidates", 4 * SELECTED)
        self.tau = policy.get("tau", 0.03)
        self.rho, self.eta = (
            (policy.get("rho", 0.4), policy.get("eta", 0.05)) if self.name == "rcr" else (0, 0)
        )
        self.leaders = [None] * LAYERS
        self.rows = {name: [] for name in ("drift", "tau", "refreshed", "overlap", "stayed")}
        self.bases = [[self._basis(layer, head) for head in range(HEADS)] for layer in range(LAYERS)]

    def _basis(self, layer, head):
        """[d, r] the right singular vectors of the prefix keys with the largest singular values."""
        keys = self.keys[layer][head][:PREFIX].double()
        return torch.linalg.svd(keys, full_matrices=False).Vh[: self.rank].T

    def attend(self, layer, query, key, value, scaling):
        exact, estimate = [], []  # [head][query head] logits of everything
        for h in range(HEADS):
            self.keys[layer][h] = torch.cat([self.keys[layer][h], key[0, h]])
            self.values[layer][h] = torch.cat([self.values[layer][h], value[0, h]])
            exact.append([self.keys[layer][h] @ query[0, h * GROUP + g, 0] * scaling for g in range(GROUP)])
            estimate.append([logits.clone() for logits in exact[h]])
            if self.name in ("rcr", "threshold") and not self.exact:
                basis = self.bases[layer][h]
                for g in range(GROUP):
                    q = query[0, h * GROUP + g, 0].double() @ basis
                    coarse = (self.keys[layer][h][:PREFIX].double() @ basis @ q * scaling).float()
                    gone = [i for i in range(PREFIX) if i not in self.held[layer][h]]
                    estimate[h][g][gone] = coarse[gone]
        self._refresh(layer, exact, estimate)
        out = []
        for h in range(HEADS):
            at = [*self.held[layer][h], *range(PREFIX, len(self.keys[layer][h]))]
            for g in range(GROUP):
                out.append(exact[h][g][at].softmax(0) @ self.values[layer][h][at])
        return torch.stack(out).view(1, 1, HEADS * GROUP, DIM)

    def _drift(self, layer, logits):
        """Attention mass on evicted entries: over the query heads by mean or max, over KV heads the mean."""
        masses = []
        for h in range(HEADS):
            gone = [i for i in range(PREFIX) if i not in self.held[layer][h]]
            masses.append([float(logits[h][g].softmax(0)[gone].sum()) for g in range(GROUP)])
        over = max if self.group == "max" else lambda values: sum(values) / len(values)
        return sum(over(mass) for mass in masses) / HEADS

    def _refresh(self, layer, exact, estimate):
        triggered = self.name in ("rcr", "threshold")
        drift, tau = self._drift(layer, estimate if triggered else exact), self.tau
        fire = drift > tau if triggered else self.name == "exact"
        if triggered:
            self.tau = tau * math.exp(self.eta * (fire - self.rho))
        weight = lambda rows: reduced(rows, self.group)[:PREFIX]  # noqa: E731
        leader, overlap = [], 0.0
        for h in range(HEADS):
            logits_only = self.group == "logits"
            truth = weight(exact[h] if logits_only else [x.softmax(0) for x in exact[h]])
            top = best(truth, SELECTED)
            if fire and (self.name == "exact" or self.exact):
                self.held[layer][h] = top
            elif fire:
                guess = weight(estimate[h] if logits_only else [x.softmax(0) for x in estimate[h]])
                candidates = best(guess, self.pool)
                mixed = [x.clone() for x in estimate[h]]
                for g in range(GROUP):
                    mixed[g][candidates] = exact[h][g][candidates]
                scores = weight(mixed if logits_only else [x.softmax(0) for x in mixed])
                self.held[layer][h] = sorted(candidates[i] for i in best(scores[candidates], SELECTED))
            leader.append(int(truth.argmax()))
            overlap += len(set(self.held[layer][h]) & set(top)) / SELECTED / HEADS
        before, self.leaders[layer] = self.leaders[layer], leader
        same = [a == b for a, b in zip(before or [], leader, strict=False)]
        self.rows["drift"].append(drift)
        self.rows["tau"].append(tau if triggered else math.nan)
        self.rows["refreshed"].append(float(fire))
        self.rows["overlap"].append(overlap)
        self.rows["stayed"].append(sum(same) / HEADS if before else math.nan)


def by_loop(adapter, one, policy, seed, new=NEW, kept=None):
    """(tokens, {field: [steps, layers]}) of a branch."""
    with torch.inference_mode():
        inputs = inputs_of(adapter, seed)
        prompt = prefill(adapter, inputs, window=WINDOW)
        if kept is None:
            mask = kept_mask(one, observe(prompt))[..., :PREFIX]
            kept = [[head.nonzero().flatten().tolist() for head in layer] for layer in mask]
        loop, tokens = Loop(prompt, kept, policy), [int(prompt.logits.argmax())]
        while len(tokens) < new:
            position = inputs.next_position + len(tokens) - 1
            tokens.append(int(adapter.step(torch.tensor(tokens[-1:]), position, loop).argmax()))
    return tokens, {name: np.array(rows).reshape(-1, LAYERS) for name, rows in loop.rows.items()}


RCR = {"name": "rcr", "tau": 0.08, "rank": 3, "candidates": 24, "eta": 0.4}
LOOPED = [{}, {"name": "exact"}, {"name": "exact", "group": "max"}, {"name": "exact", "group": "logits"}]
LOOPED += [{**RCR, "group": group} for group in ("mean", "max", "logits")]
# tau: where about half of the layers fire, on this model
TAU = {
    "exact": {"mean": 0.45, "max": 0.8, "logits": 0.45},
    "lowrank": {"mean": 0.06, "max": 0.2, "logits": 0.06},
}
DETECTOR = {"exact": {}, "lowrank": {"rank": 3, "candidates": 24}}
LOOPED += [
    {"name": "threshold", "detector": d, "tau": tau, **DETECTOR[d], "group": group}
    for d, by_group in TAU.items()
    for group, tau in by_group.items()
]


@pytest.mark.parametrize("policy", LOOPED, ids=lambda p: "-".join(map(str, p.values())) or "none")
def test_decode_and_trace_are_those_of_the_loop(llama, policy):
    one = method(policy or None)
    fired = []
    for seed in (0, 1):
        tokens, expected = by_loop(llama, one, policy, seed)
        (answer,) = generate(llama, inputs_of(llama, seed), [one], max_new_tokens=NEW, trace=True)
        assert answer.tokens == tokens
        for name, values in expected.items():
            found = getattr(answer.trace, name)
            np.testing.assert_allclose(found, values, atol=2e-5, rtol=2e-4, err_msg=name)
        fired.append(expected["refreshed"].mean())
    if policy.get("name") in ("rcr", "threshold"):
        assert 0.05 < np.mean(fired) < 0.95, np.mean(fired)  # both answers of the trigger occur


@pytest.mark.parametrize(
    "refresh", [{}, *LOOPED[1:2], RCR, *LOOPED[7:8]], ids=lambda p: p.get("name", "none")
)
def test_a_trace_is_the_same_alone_and_beside_branches_that_end(llama, refresh, monkeypatch):
    """Each branch keeps its own tau, rho, eta and last step's leaders when others leave the batch."""
    if refresh.get("name") == "rcr":
        several = [{"tau": 0.02, "rho": 0.9, "eta": 0.1}, {"tau": 0.2, "rho": 0.1, "eta": 0.6}, {}]
    elif refresh.get("name") == "threshold":
        several = [{"tau": 0.02}, {"tau": 0.2}, {"tau": 0.08}]
    else:
        several = [{"group": group} for group in ("mean", "max", "logits")] if refresh else [{}]
    names = ("snapkv", "snapkv+knorm", "snapkv+vnorm", "snapkv+keydiff")
    grid = [method({**refresh, **o} or None, name) for name in names for o in several]
    for seed in range(20):  # until a stop token ends some branches early and at different steps
        inputs = inputs_of(llama, seed)
        free = [a.tokens for a in generate(llama, inputs, grid, max_new_tokens=24)]
        ends = {t: {f.index(t) if t in f else 24 for f in free} for f in free for t in f[3:]}
        stop = max(ends, key=lambda t: (len(ends[t]), t))
        if len(ends[stop]) > 1 and max(ends[stop]) - min(ends[stop]) > 3:
            break
    monkeypatch.setattr(llama, "stop_ids", frozenset([stop]))
    together = generate(llama, inputs, grid, max_new_tokens=24, trace=True)
    assert len({len(answer.tokens) for answer in together}) > 1
    for one, answer in zip(grid, together, strict=True):
        (alone,) = generate(llama, inputs, [one], max_new_tokens=24, trace=True)
        assert alone.tokens == answer.tokens
        for name in ("drift", "tau", "refreshed", "reads", "dots", "overlap", "stayed"):
            ours, theirs = getattr(answer.trace, name), getattr(alone.trace, name)
            np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=2e-4, err_msg=name)


@pytest.mark.parametrize("group", ["mean", "max", "logits"])
def test_the_oracle_takes_the_most_attended_of_the_uncompressed_answer(llama, group):
    whole = [[list(range(PREFIX)) for _ in range(HEADS)] for _ in range(LAYERS)]
    sums = [[torch.zeros(PREFIX) for _ in range(HEADS)] for _ in range(LAYERS)]
    note = Loop._refresh

    def summed(self, layer, exact, estimate):
        for h in range(HEADS):
            rows = exact[h] if group == "logits" else [x.softmax(0) for x in exact[h]]
            sums[layer][h] += reduced(rows, group)[:PREFIX]

    Loop._refresh = summed
    try:
        by_loop(llama, None, {}, 0, kept=whole)
    finally:
        Loop._refresh = note
    kept = [[best(head, SELECTED) for head in layer] for layer in sums]
    expected, _ = by_loop(llama, None, {}, 0, kept=kept)
    grid = [method({"name": "oracle", "group": g}) for g in ("mean", "max", "logits")]  # asked at once
    answers = generate(llama, inputs_of(llama), grid, max_new_tokens=NEW)
    assert answers[("mean", "max", "logits").index(group)].tokens == expected


@pytest.mark.parametrize("refresh", [{}, {"name": "exact"}, {"name": "oracle"}, RCR, *LOOPED[7:8]], ids=str)
def test_a_prompt_no_longer_than_the_window_is_kept_whole(llama, refresh):
    inputs = inputs_of(llama, length=WINDOW)
    grid = [build({"name": "fullkv"}, None), method(refresh or None)]
    full, other = generate(llama, inputs, grid, max_new_tokens=6)
    assert other.tokens == full.tokens and len(set(full.tokens)) > 1
