"""Decode-time re-selection: what every policy must do, on random tensors and on a tiny random Llama."""

import math
from types import SimpleNamespace

import pytest
import tinyllama
import torch
from decoding import contents

from kvbench.engine import decode, generate, prefill
from kvbench.engine import prefix as engine_prefix
from kvbench.engine import refresh as engine_refresh
from kvbench.engine.cache import CompactCache
from kvbench.engine.generate import observe
from kvbench.engine.prefill import query_basis
from kvbench.engine.refresh import Group, Plan, Prefix, Step, plan_of
from kvbench.errors import UserError
from kvbench.methods import build
from kvbench.methods.registry import make
from kvbench.methods.select import kept_mask, to_sets
from kvbench.store import trace as traces

LAYERS, HEADS, GROUP, DIM = 3, 2, 2, 16
WINDOW, SELECTED = 8, 16
BUDGET = WINDOW + SELECTED
POLICIES = [
    {"name": "exact"},
    {"name": "threshold", "tau": 0.05},
    {"name": "threshold", "tau": 0.05, "detector": "exact"},
    {"name": "rcr", "tau": 0.05},
    {"name": "quest", "page": 8},
    {"name": "arkvale", "page": 8},
    {"name": "infinigen"},
    {"name": "infinigen", "query": "current"},
    {"name": "oracle"},
]


def ident(value):
    return "-".join(str(v) for v in value.values()) if isinstance(value, dict) else None


@pytest.fixture(scope="module")
def llama():
    return tinyllama.adapter(LAYERS, HEADS, GROUP, DIM)


def inputs_of(adapter, length=90, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return adapter.text_inputs(torch.randint(2, 97, (length,), generator=generator).tolist())


def method(refresh=None, name="snapkv+bacon", budget=BUDGET, window=WINDOW):
    return build({"name": name, "window": window, "refresh": refresh}, budget)


def tokens(adapter, methods, count=24, length=90, seed=0, **options):
    answers = generate(adapter, inputs_of(adapter, length, seed), methods, max_new_tokens=count, **options)
    return [a.tokens for a in answers]


class Prompt:
    """What Prefix reads of a prefill, from random tensors."""

    def __init__(self, length=60, seed=0, layers=1, dim=DIM):
        g = torch.Generator().manual_seed(seed)
        self.key_stack = torch.randn(layers, HEADS, length, dim, generator=g)
        self.value_stack = torch.randn(layers, HEADS, length, dim, generator=g)
        queries = torch.randn(layers, HEADS * GROUP, length, dim, generator=g)
        self.query_basis = torch.stack([query_basis(q, HEADS) for q in queries])
        self.logits = torch.zeros(4)
        self.generator = g


def random_step(prompt, branches=2, generated=5, selected=SELECTED, offload=False):
    """A Step over random queries and a random current selection."""
    prefix = Prefix(prompt, offload)
    dim = prompt.key_stack.shape[-1]
    count = prefix.length - WINDOW
    g = prompt.generator
    rank = torch.rand(branches, HEADS, count, generator=g)
    positions = rank.topk(selected).indices.sort(-1).values
    window = prefix.keys[0, :, count:].expand(branches, -1, -1, -1)
    new = torch.randn(branches, HEADS, generated, dim, generator=g)
    held = torch.cat([prefix.gather(prefix.keys, 0, positions), window, new], 2)
    query = 2 * torch.randn(branches, HEADS, GROUP, dim, generator=g)
    return Step(prefix, 0, count, query, held, positions, selected, dim**-0.5)


def true_logits(step):
    """[B, H, G, N_p] by einsum."""
    return torch.einsum("bhgd,hnd->bhgn", step.query, step.prefix.keys[0, :, : step.count]) * step.scaling


def exact_positions(step, reduce="mean", **_):
    """The true top entries, by a loop over branches and heads."""
    logits = true_logits(step)
    out = torch.empty(*step.positions.shape, dtype=torch.int64)
    for b in range(logits.shape[0]):
        for h in range(HEADS):
            weight = torch.zeros(step.count)
            for g in range(GROUP):
                others = step.query[b, h, g] @ step.held[b, h, step.selected :].T * step.scaling
                p = torch.cat([logits[b, h, g], others]).softmax(0)[: step.count]
                weight = torch.maximum(weight, p) if reduce == "max" else weight + p
            order = sorted(range(step.count), key=lambda i: (-float(weight[i]), i))
            out[b, h] = torch.tensor(sorted(order[: step.selected]))
    return out


# One step ----------------------------------------


@pytest.mark.parametrize("group", ["mean", "max"])
def test_exact_is_the_brute_force_top(group):
    step = random_step(Prompt())
    assert torch.equal(make("refresh", "exact", {"group": group}).propose(step), exact_positions(step, group))


def test_group_reductions_differ():
    step = random_step(Prompt(seed=3))
    found = [make("refresh", "exact", {"group": g}).propose(step) for g in ("mean", "max", "logits")]
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_top_breaks_ties_towards_the_lower_position():
    scores = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0, 5.0, 5.0]])
    assert Step.top(scores, 3).tolist() == [[1, 2, 3], [0, 1, 2]]
    assert Step.top(scores[:1], 1).tolist() == [[1]] and Step.top(scores[:1], 5).tolist() == [[0, 1, 2, 3, 4]]
    assert Step.top(scores, 9).tolist() == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("page", [4, 8, 16])
def test_quest_bounds_every_logit_and_arkvale_does_not_have_to(page):
    step = random_step(Prompt(length=61))  # 53 prefix entries: the last page is not full
    true = true_logits(step)
    cover = lambda pages: pages.repeat_interleave(page, -1)[..., : step.count]  # noqa: E731
    bound = cover(make("refresh", "quest", {"page": page}).page_logits(step))
    assert bool((bound >= true - 1e-5).all())
    estimate = cover(make("refresh", "arkvale", {"page": page}).page_logits(step))
    assert bool((estimate < true - 1e-3).any())
    # Tight enough to be a bound of this page and no other: some dimension-wise extreme is reached.
    assert float((bound - true).min()) < float((bound - true.mean()).mean())


def test_page_bounds_by_hand():
    step = random_step(Prompt(length=WINDOW + 20), selected=4)
    pages = make("refresh", "quest", {"page": 8}).page_logits(step)
    keys, q = step.prefix.keys[0, 1, 16:20], step.query[0, 1, 1]
    by_hand = sum(max(q[j] * keys[:, j].max(), q[j] * keys[:, j].min()) for j in range(DIM)) * step.scaling
    torch.testing.assert_close(pages[0, 1, 1, 2], by_hand)
    pages = make("refresh", "arkvale", {"page": 8}).page_logits(step)
    centre, away = keys.mean(0), (keys - keys.mean(0)).abs().mean(0)
    by_hand = (
        sum(max(q[j] * (centre + away)[j], q[j] * (centre - away)[j]) for j in range(DIM)) * step.scaling
    )
    torch.testing.assert_close(pages[0, 1, 1, 2], by_hand)


@pytest.mark.parametrize("group", ["mean", "max", "logits"])
@pytest.mark.parametrize("name", ["quest", "arkvale"])
def test_page_of_one_is_exact(name, group):
    step = random_step(Prompt(seed=1))
    found = make("refresh", name, {"page": 1, "group": group}).propose(step)
    assert torch.equal(found, make("refresh", "exact", {"group": group}).propose(step))
    assert not torch.equal(found, make("refresh", name, {"page": 8, "group": group}).propose(step))


def test_pages_come_whole():
    step = random_step(Prompt(length=WINDOW + 64))
    found = make("refresh", "quest", {"page": 8}).propose(step)
    assert bool((found.view(*found.shape[:2], -1, 8) // 8 == found[..., ::8].unsqueeze(-1) // 8).all())


def test_an_unfilled_page_still_fills_the_slots():
    prompt = Prompt(length=WINDOW + 20)
    prompt.key_stack[..., 16:20, :] *= 50  # the last page, of 4 entries, has by far the largest bound
    step = random_step(prompt, selected=8)
    found = make("refresh", "quest", {"page": 8}).propose(step)
    assert found.shape[-1] == 8 and bool((found.diff(dim=-1) > 0).all()) and int(found.max()) == 19


@pytest.mark.parametrize("seed", range(3))
def test_infinigen_with_all_dimensions_is_exact(seed):
    step = random_step(Prompt(seed=seed))
    exact = exact_positions(step)
    full = make("refresh", "infinigen", {"rank": DIM, "query": "current"}).propose(step)
    assert torch.equal(full, exact)
    assert not torch.equal(make("refresh", "infinigen", {"query": "current"}).propose(step), exact)


def test_query_basis_rotates_and_ranks():
    queries = torch.randn(HEADS * GROUP, 40, DIM) * torch.linspace(0.1, 3, DIM)
    basis = query_basis(queries, HEADS)
    torch.testing.assert_close(
        basis @ basis.transpose(1, 2), torch.eye(DIM).expand(HEADS, -1, -1), atol=1e-5, rtol=0
    )
    stacked = queries.view(HEADS, GROUP * 40, DIM)
    sizes = (stacked @ basis).abs().sum(1)
    assert bool((sizes.diff(dim=-1) <= 1e-3).all())
    gram = basis.transpose(1, 2) @ stacked.transpose(1, 2) @ stacked @ basis
    off = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    assert float(off.abs().max()) < 1e-3 * float(gram.max())


@pytest.mark.parametrize("group", ["mean", "max", "logits"])
def test_rcr_with_full_rank_and_all_candidates_is_exact(group):
    step = random_step(Prompt(length=WINDOW + 4 * SELECTED, seed=2))  # 4c = N_p
    policy = make("refresh", "rcr", {"rank": DIM, "group": group})
    assert policy.pool(step.count, SELECTED) == step.count
    exact = make("refresh", "exact", {"group": group}).propose(step)
    assert torch.equal(policy.propose(step), exact)
    # ... and so are all candidates with a coarse detector: only the candidates' exact scores decide.
    if group == "logits":
        assert torch.equal(make("refresh", "rcr", {"rank": 1, "group": group}).propose(step), exact)


SETTINGS = [
    *({"name": "rcr", "rank": rank} for rank in (2, 5)),
    *({"name": "threshold", "rank": rank} for rank in (2, 5)),
    {"name": "threshold", "detector": "exact"},
    {"name": "exact"},
    *({"name": "quest", "page": page} for page in (4, 8)),
    *({"name": "arkvale", "page": page, "centre": c} for page in (4, 8) for c in ("mean", "middle")),
    *({"name": "infinigen", "rank": rank, "query": "current"} for rank in (2, 5)),
]


@pytest.mark.parametrize("group", ["mean", "max", "logits"])
def test_settings_of_one_run_do_not_share_what_differs(group):
    """On a prefix that all the others have used, a policy proposes and measures what it does alone."""
    steps = [random_step(Prompt(length=61, seed=4)) for _ in range(len(SETTINGS) + 1)]
    shared = steps.pop().prefix
    found = []
    for options, step in zip(SETTINGS, steps, strict=True):
        policy = make("refresh", options["name"], {**dict(list(options.items())[1:]), "group": group})
        args = (0, step.count, step.query, step.held, step.positions, step.selected, step.scaling)
        together = Step(shared, *args)
        assert torch.equal(policy.propose(together), policy.propose(step)), options
        if policy.triggered:
            assert torch.equal(policy.drift(together), policy.drift(step)), options
        found.append(tuple(policy.propose(step).flatten().tolist()))
    assert len(set(found)) > len(SETTINGS) / 2


def test_cuboids_by_hand():
    """Both centres, in a full page and in the last one, which is not full."""
    step = random_step(Prompt(length=WINDOW + 20), selected=4)
    for centre in ("mean", "middle"):
        pages = make("refresh", "arkvale", {"page": 8, "centre": centre}).page_logits(step)
        for page, (first, last) in enumerate([(0, 8), (8, 16), (16, 20)]):
            keys, q = step.prefix.keys[0, 1, first:last], step.query[0, 1, 1]
            at = keys.mean(0) if centre == "mean" else (keys.amax(0) + keys.amin(0)) / 2
            away = (keys - at).abs().mean(0)
            expected = sum(max(q[j] * (at + away)[j], q[j] * (at - away)[j]) for j in range(DIM))
            torch.testing.assert_close(pages[0, 1, 1, page], expected * step.scaling)


def test_rcr_is_approximate_otherwise():
    step = random_step(Prompt(length=160, seed=2))
    exact = exact_positions(step)
    found = make("refresh", "rcr", {"rank": 2}).propose(step)
    assert not torch.equal(found, exact)
    shared = lambda p: float((p.unsqueeze(-1) == exact.unsqueeze(-2)).any(-1).float().mean())  # noqa: E731
    assert shared(found) > shared(step.positions) + 0.1


@pytest.mark.parametrize(
    "name, options",
    [("threshold", {"detector": "exact"}), ("threshold", {"rank": DIM}), ("rcr", {"rank": DIM})],
)
def test_drift_is_the_mass_on_evicted_entries(name, options):
    step = random_step(Prompt())
    policy = make("refresh", name, options)
    logits = true_logits(step)
    others = torch.einsum("bhgd,bhnd->bhgn", step.query, step.held[:, :, SELECTED:]) * step.scaling
    p = torch.cat([logits, others], -1).softmax(-1)[..., : step.count]
    evicted = torch.ones(2, HEADS, step.count).scatter(-1, step.positions, 0)
    expected = (p * evicted.unsqueeze(2)).sum(-1).mean((1, 2))
    torch.testing.assert_close(policy.drift(step), expected)
    assert float(expected.min()) > 0.05


def test_rcr_uses_exact_logits_for_what_it_holds():
    step = random_step(Prompt())
    detected = make("refresh", "rcr", {"rank": 2}).logits(step)
    wide = step.positions.unsqueeze(2).expand(-1, -1, GROUP, -1)
    torch.testing.assert_close(detected.gather(-1, wide), true_logits(step).gather(-1, wide))
    assert float((detected - true_logits(step)).abs().max()) > 0.1


# The controller ----------------------------------------


class Fixed:
    """Stands in for a policy: given drifts, proposes what is held."""

    triggered, offload, branching, group, speculates = True, False, False, "mean", False

    def __init__(self, drifts):
        self.drifts = drifts

    def cost(self, *_):
        return engine_refresh.Cost()

    def drift(self, step):
        return self.drifts.pop(0)

    def propose(self, step):
        return step.positions


def controlled(drifts, options):
    """(tau after every decision, decisions) of a one-layer group that sees these drifts, [T, B]."""
    prompt = Prompt(length=30)
    policies = [make("refresh", "rcr", o) for o in options]
    sets = [[[torch.cat([torch.arange(4), torch.arange(22, 30)]) for _ in range(HEADS)]] for _ in options]
    members = [(i, i, sets[i], p) for i, p in enumerate(policies)]
    group = Group(Prefix(prompt, False), Plan(policies[0], WINDOW, 4), members, trace=False)
    group.policy = Fixed(list(drifts))
    prompt.length = 30
    cache = CompactCache(prompt, sets, room=1, watchers=[group])
    query = torch.randn(len(options) * HEADS, 1, GROUP, DIM)
    seen, fired = [], []
    for drift in drifts:
        before = group.tau
        group.before(0, cache._buckets[0][0], 12, query, 0.25)
        seen.append(group.tau.clone())
        fired.append(drift > before)
    return torch.stack(seen), torch.stack(fired)


@pytest.mark.parametrize("rho", [0.2, 0.4, 0.7])
def test_tau_converges_to_the_quantile_of_drift(rho):
    torch.manual_seed(1)
    drifts = torch.distributions.Beta(2.0, 8.0).sample((2500, 2))
    tau, fired = controlled(
        drifts, [{"rho": rho, "tau": 0.03, "eta": 0.04}, {"rho": rho, "tau": 0.9, "eta": 0.04}]
    )
    quantile = drifts.quantile(1 - rho)
    assert float((tau[600:].mean(0) / quantile - 1).abs().max()) < 0.05  # from below and from above
    assert float((fired[600:].float().mean(0) - rho).abs().max()) < 0.01


def test_tau_follows_its_formula_per_branch():
    drifts = torch.tensor([[0.1, 0.1], [0.02, 0.2]])
    options = [{"tau": 0.03, "rho": 0.4, "eta": 0.05}, {"tau": 0.15, "rho": 0.1, "eta": 0.5}]
    tau, fired = controlled(drifts, options)
    assert fired.tolist() == [[True, False], [False, True]]
    first = [0.03 * math.exp(0.05 * 0.6), 0.15 * math.exp(0.5 * -0.1)]
    second = [first[0] * math.exp(0.05 * -0.4), first[1] * math.exp(0.5 * 0.9)]
    torch.testing.assert_close(tau, torch.tensor([first, second]))


def test_drift_equal_to_tau_does_not_exceed_it():
    drifts = torch.tensor([[0.25, 0.25]])
    tau, _ = controlled(
        drifts, [{"tau": 0.25, "eta": 0.5, "rho": 0.5}, {"tau": 0.125, "eta": 0.5, "rho": 0.5}]
    )
    torch.testing.assert_close(tau, torch.tensor([[0.25 * math.exp(-0.25), 0.125 * math.exp(0.25)]]))


@pytest.mark.parametrize(("rho", "low", "high"), [(1.0, 0.95, 1.0), (0.0, 0.0, 0.05), (0.4, 0.3, 0.5)])
def test_rho_sets_the_refreshed_share(llama, rho, low, high):
    answers = generate(
        llama,
        inputs_of(llama),
        [method({"name": "rcr", "rho": rho, "eta": 0.3})],
        max_new_tokens=100,
        trace=True,
    )
    share = answers[0].trace.refreshed[20:].mean()
    assert low <= share <= high
    if rho in (0.0, 1.0):  # tau only ever falls, or only ever rises
        steps = answers[0].trace.tau.ravel()
        assert bool(((steps[1:] <= steps[:-1]) if rho else (steps[1:] >= steps[:-1])).all())


# Decoding ----------------------------------------


@pytest.mark.parametrize("refresh", POLICIES, ids=ident)
def test_full_budget_equals_fullkv(llama, refresh):
    methods = [build({"name": "fullkv"}, None), method(refresh, budget=88), method(refresh, budget=408)]
    full, *rest = tokens(llama, methods, length=88)
    assert rest == [full, full]
    assert len(set(full)) > 3  # a model that repeats one token would prove nothing


def by_hand(adapter, count, length=90, seed=0, first_exact=True):
    """Exact re-selection as a loop: per step, layer, head the true top of the prefix, window, generated."""

    class State:
        def __init__(self, prompt):
            self.keys, self.values = list(prompt.key_stack), list(prompt.value_stack)

        def attend(self, layer, query, key, value, scaling):
            self.keys[layer] = torch.cat([self.keys[layer], key[0]], 1)
            self.values[layer] = torch.cat([self.values[layer], value[0]], 1)
            out = torch.empty(1, 1, HEADS * GROUP, DIM)
            for h in range(HEADS):
                q = query[0, h * GROUP : (h + 1) * GROUP, 0]
                logits = q @ self.keys[layer][h].T * scaling
                weight = logits.softmax(-1).mean(0)[: length - WINDOW]
                kept = weight.sort(descending=True, stable=True).indices[:SELECTED]
                at = torch.cat([kept.sort().values, torch.arange(length - WINDOW, logits.shape[1])])
                out[0, 0, h * GROUP : (h + 1) * GROUP] = logits[:, at].softmax(-1) @ self.values[layer][h, at]
            return out

    with torch.inference_mode():
        inputs = inputs_of(adapter, length, seed)
        prompt = prefill(adapter, inputs, window=WINDOW)
        state, found = State(prompt), [int(prompt.logits.argmax())]
        while len(found) < count:
            position = inputs.next_position + len(found) - 1
            found.append(int(adapter.step(torch.tensor(found[-1:]), position, state).argmax()))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_exact_policy_equals_brute_force(llama, seed):
    expected = by_hand(llama, 30, seed=seed)
    one_shot, exact = tokens(llama, [method(), method({"name": "exact"})], count=30, seed=seed)
    assert exact == expected
    assert one_shot != expected


def test_exact_equivalents_decode_alike(llama):
    alike = [
        {"name": "exact"},
        {"name": "threshold", "tau": 0.0, "detector": "exact"},
        {"name": "quest", "page": 1},
        {"name": "arkvale", "page": 1},
        {"name": "infinigen", "rank": DIM, "query": "current"},
        {"name": "rcr", "rank": DIM, "candidates": 82, "tau": 0.0, "rho": 1.0},
    ]
    found = tokens(llama, [method(r) for r in alike], count=40)
    assert all(f == found[0] for f in found)


@pytest.mark.parametrize("options", [{}, {"rank": 4}, {"candidates": 20}, {"group": "max"}], ids=str)
def test_a_fixed_threshold_is_rcr_without_rate_control(llama, options):
    for tau in (0.05, 0.15):
        alike = [{"name": "threshold", "tau": tau}, {"name": "rcr", "tau": tau, "eta": 0.0}]
        rival = {"name": "threshold", "tau": tau, "detector": "exact"}
        found = [method({**one, **options}) for one in alike]
        fixed, rcr, exact = tokens(llama, [*found, method(rival)], 40)
        assert fixed == rcr and fixed != exact


def test_policies_differ(llama):
    found = tokens(llama, [method(r) for r in [None, *POLICIES]], count=60)
    assert len({tuple(f) for f in found}) >= 6


@pytest.mark.parametrize("refresh", [p for p in POLICIES if p["name"] in ("rcr", "threshold")], ids=ident)
def test_branching_equals_masked(llama, refresh):
    several = [method({**refresh, "tau": tau}) for tau in (0.02, 0.1, 0.3)]
    branching = [method({**refresh, "tau": tau, "branching": True}) for tau in (0.02, 0.1, 0.3)]
    for seed in range(3):
        assert tokens(llama, several, 40, seed=seed) == tokens(llama, branching, 40, seed=seed)


@pytest.mark.parametrize("refresh", POLICIES, ids=ident)
def test_offload_changes_no_token(llama, refresh):
    assert tokens(llama, [method(refresh)], 40) == tokens(llama, [method({**refresh, "offload": True})], 40)


def test_offload_reads_only_what_the_trigger_asks_for(llama, monkeypatch):
    made = []

    class Spy(Prefix):
        def __init__(self, *args):
            super().__init__(*args)
            self.vectors_read = self.layers_read = 0
            made.append(self)

        def gather(self, source, layer, positions):
            self.vectors_read += positions.numel()
            return super().gather(source, layer, positions)

        def keys_of(self, layer, count):
            self.layers_read += 1
            return super().keys_of(layer, count)

    monkeypatch.setattr(engine_prefix, "Prefix", Spy)
    refresh = {"name": "rcr", "tau": 0.1, "offload": True, "rho": 0.3}
    with torch.inference_mode():
        prompt = prefill(llama, inputs_of(llama), window=WINDOW)
        one = method(refresh)
        kept = [to_sets(kept_mask(one, observe(prompt)))]
        plan, recorded = plan_of(one, 90, DIM, False), []
        decode(llama, prompt, kept, max_new_tokens=30, stop_ids=(), plans=[plan])
        untraced, set_up = made[-1].vectors_read, made[-1].layers_read
        decode(llama, prompt, kept, max_new_tokens=30, stop_ids=(), plans=[plan], traces=recorded)
    fired = int(recorded[0].refreshed.sum())
    assert 0 < fired < recorded[0].refreshed.size
    # 4c candidate keys and c values per KV head, only for layers that fire; what is traced reads everything.
    assert untraced == fired * HEADS * (4 * SELECTED + SELECTED)
    assert float(recorded[0].reads.sum()) * HEADS == untraced
    assert made[-1].layers_read > set_up


def test_a_branch_alone_equals_a_branch_in_a_mixed_batch(llama):
    mixed = [
        build({"name": "fullkv"}, None),
        method(),
        build({"name": "adakv", "window": WINDOW}, 20),
        *[method(r) for r in POLICIES],
        method({"name": "rcr", "tau": 0.3, "rho": 0.1}),
        method({"name": "exact"}, name="snapkv", budget=40, window=16),
        method({"name": "rcr", "tau": 0.02}, name="snapkv+keydiff", budget=48),
    ]
    together = tokens(llama, mixed, 30)
    for one, expected in zip(mixed, together, strict=True):
        assert tokens(llama, [one], 30) == [expected]


def test_branches_that_end_early_leave_the_rest_unchanged(llama):
    mixed = [method(r) for r in [None, *POLICIES]] + [method({"name": "rcr", "tau": 0.3})]
    before = tokens(llama, mixed, 40)
    stop = next(t for t in before[3][5:] if sum(t in f for f in before) < len(before))
    llama.stop_ids = frozenset([stop])
    try:
        answers = generate(llama, inputs_of(llama), mixed, max_new_tokens=40, trace=True)
    finally:
        llama.stop_ids = frozenset()
    cut = lambda f: f[: f.index(stop) + 1] if stop in f else f  # noqa: E731
    oracle = 1 + [r["name"] for r in POLICIES].index(
        "oracle"
    )  # its selection depends on where the answer ends
    for i, (answer, expected) in enumerate(zip(answers, before, strict=True)):
        if i != oracle:
            assert answer.tokens == cut(expected)
        assert answer.trace.steps == len(answer.tokens) - 1
    assert len({len(a.tokens) for a in answers}) > 1


@pytest.mark.parametrize("refresh", [p for p in POLICIES if p["name"] != "oracle"], ids=ident)
def test_cache_holds_selected_window_generated(llama, refresh, monkeypatch):
    """At every step, and each slot's key and value are the prompt's at its position."""
    steps = []
    original = CompactCache.advance

    def advance(cache):
        original(cache)
        group = cache._watchers[0]
        for layer in range(LAYERS):
            for head in range(HEADS):
                keys, values = contents(cache, 0, layer, head)
                assert len(keys) == SELECTED + WINDOW + cache.tail
                at = torch.cat([group.positions[layer][0, head], torch.arange(90 - WINDOW, 90)])
                assert bool((at.diff() > 0).all())
                assert torch.equal(keys[: len(at)], group.prefix.keys[layer, head, at])
                assert torch.equal(values[: len(at)], group.prefix.values[layer, head, at])
        steps.append([p.clone() for p in group.positions])

    monkeypatch.setattr(CompactCache, "advance", advance)
    tokens(llama, [method(refresh)], 80)  # past the first chunk of room for generated entries
    assert len(steps) == 79
    assert any(not torch.equal(a[1], b[1]) for a, b in zip(steps, steps[1:], strict=False))


def test_refreshed_set_serves_the_same_step(llama):
    """The first decode step already attends to its own exact selection, not to the one from prefill."""
    with torch.inference_mode():
        prompt = prefill(llama, inputs_of(llama), window=WINDOW)
        first = torch.tensor([int(prompt.logits.argmax())])
        one = method({"name": "exact"})
        kept = to_sets(kept_mask(one, observe(prompt)))
        plan = plan_of(one, 90, DIM, False)

        def logits(plans):
            groups = engine_refresh.make_groups(engine_refresh.Prefixes(prompt), [kept], plans, [0], False)
            cache = CompactCache(prompt, [kept], 4, groups)
            return llama.step(first, prompt.next_position, cache), groups

        refreshed, groups = logits([plan])
        sets = [
            [torch.cat([head, torch.arange(90 - WINDOW, 90)]) for head in groups[0].positions[layer][0]]
            for layer in range(LAYERS)
        ]
        cache = CompactCache(prompt, [sets], 4)
        torch.testing.assert_close(refreshed, llama.step(first, prompt.next_position, cache))
        assert float((refreshed - logits([None])[0]).abs().max()) > 1e-3


def test_oracle_keeps_what_the_uncompressed_answer_looks_at(llama):
    """The top entries by the mean attention of all decode steps, by a loop that stores every step."""
    weights = [torch.zeros(HEADS, 82) for _ in range(LAYERS)]

    class State:
        def __init__(self, prompt):
            self.keys, self.values = list(prompt.key_stack), list(prompt.value_stack)

        def attend(self, layer, query, key, value, scaling):
            self.keys[layer] = torch.cat([self.keys[layer], key[0]], 1)
            self.values[layer] = torch.cat([self.values[layer], value[0]], 1)
            k, v = (t[layer].repeat_interleave(GROUP, 0) for t in (self.keys, self.values))
            p = (query[0] @ k.transpose(1, 2) * scaling).softmax(-1)
            weights[layer] += p[:, 0].view(HEADS, GROUP, -1).mean(1)[:, :82]
            return (p @ v).transpose(0, 1).unsqueeze(0)

    with torch.inference_mode():
        inputs = inputs_of(llama)
        prompt = prefill(llama, inputs, window=WINDOW)
        state, token = State(prompt), int(prompt.logits.argmax())
        for step in range(29):
            token = int(llama.step(torch.tensor([token]), inputs.next_position + step, state).argmax())
        window = torch.arange(82, 90)
        kept = [
            [torch.cat([w.topk(SELECTED).indices.sort().values, window]) for w in layer] for layer in weights
        ]
        expected = decode(llama, prompt, [kept], max_new_tokens=30, stop_ids=())
    assert tokens(llama, [method({"name": "oracle"}), method()], 30)[0] == expected[0]
    assert tokens(llama, [method()], 30) != expected


def test_speculated_query_is_the_layers_projection_of_the_previous_input(llama, monkeypatch):
    seen = []
    original = Step.speculated

    def spy(step):
        seen.append((step.layer, step.query.clone(), None if step.guess is None else step.guess.clone()))
        return original(step)

    inputs = []
    handles = [
        layer.self_attn.register_forward_pre_hook(
            lambda m, a, k: inputs.append(k["hidden_states"]), with_kwargs=True
        )
        for layer in llama.model.model.layers
    ]
    monkeypatch.setattr(Step, "speculated", spy)
    tokens(llama, [method({"name": "infinigen"})], 2)
    for handle in handles:
        handle.remove()
    inputs = inputs[LAYERS:]  # the prefill's come first
    assert [layer for layer, *_ in seen] == [0, 1, 2] and seen[0][2] is None
    for layer in (1, 2):
        projected = (
            llama.model.model.layers[layer].self_attn.q_proj(inputs[layer - 1]).view(HEADS, GROUP, DIM)
        )
        # RoPE rotates pairs of dimensions: it keeps each pair's length.
        pairs = lambda q: q.reshape(HEADS, GROUP, 2, DIM // 2).norm(dim=2)  # noqa: E731
        torch.testing.assert_close(pairs(seen[layer][2][0]), pairs(projected))
        assert not torch.allclose(seen[layer][2], seen[layer][1])


# Traces ----------------------------------------


@pytest.fixture(scope="module")
def traced(llama):
    grid = [None, *POLICIES]
    methods = [build({"name": "fullkv"}, None), build({"name": "adakv", "window": WINDOW}, BUDGET)]
    methods += [method(r) for r in grid]
    answers = generate(llama, inputs_of(llama), methods, max_new_tokens=20, trace=True)
    plain = generate(llama, inputs_of(llama), methods, max_new_tokens=20)
    assert [a.tokens for a in answers] == [a.tokens for a in plain]
    assert all(a.trace is None for a in plain)
    labels = ["fullkv", "adakv"] + ["none" if r is None else ident(r) for r in grid]
    return dict(zip(labels, answers, strict=True))


def test_traces_have_a_row_per_step_and_layer(traced):
    for answer in traced.values():
        assert answer.trace.drift.shape == (19, LAYERS)
        for values in (answer.trace.drift, answer.trace.overlap, answer.trace.stayed[1:]):
            assert bool(((values >= 0) & (values <= 1 + 1e-6)).all())
        assert bool((answer.trace.stayed[:1] != answer.trace.stayed[:1]).all())


def test_traces_say_what_each_policy_did(traced):
    full, exact, none = traced["fullkv"].trace, traced["exact"].trace, traced["none"].trace
    assert float(full.drift.max()) == 0 and float(full.overlap.min()) == 1 and full.refreshed.sum() == 0
    assert float(exact.overlap.min()) == 1 and bool((exact.refreshed == 1).all())
    assert float(none.overlap.mean()) < 0.9 and none.refreshed.sum() == 0 and none.reads.sum() == 0
    assert float(none.drift.mean()) > 0.01
    assert 0 < traced["rcr-0.05"].trace.refreshed.mean() < 1
    for name in ("quest-8", "arkvale-8", "infinigen-current"):
        assert float(none.overlap.mean()) < float(traced[name].trace.overlap.mean()) <= 1
    # A layer that fires under an exact threshold holds the exact set; the others what they held.
    threshold = traced["threshold-0.05-exact"].trace
    fired = threshold.refreshed == 1
    assert bool((threshold.overlap[fired] == 1).all()) and bool((fired == (threshold.drift > 0.05)).all())


def test_costs_have_the_same_units(traced):
    prefix = 90 - WINDOW
    pages = math.ceil(prefix / 8)
    expected = {  # held, dots, reads when refreshed
        "exact": (0, prefix, prefix + SELECTED),
        "rcr-0.05": (prefix * 8 / DIM, prefix * 8 / DIM, 5 * SELECTED),
        "threshold-0.05": (prefix * 8 / DIM, prefix * 8 / DIM, 5 * SELECTED),
        "quest-8": (2 * pages, 2 * pages, 2 * SELECTED),
        "arkvale-8": (2 * pages, 2 * pages, 2 * SELECTED),
        "infinigen-current": (prefix / 4, prefix / 4, 2 * SELECTED),
        "oracle": (0, 0, 0),
    }
    for name, (held, dots, reads) in expected.items():
        trace = traced[name].trace
        assert trace.held == held and bool((trace.dots == dots).all())
        assert bool((trace.reads == reads * (trace.refreshed if name != "oracle" else 0)).all())
    threshold = traced["threshold-0.05-exact"].trace
    assert bool((threshold.reads == prefix + SELECTED * threshold.refreshed).all())


def test_paper_costs():
    """RCR's figures at d = 128, N_p = 4096, c = 32: N_p / 16 and 160 reads; InfiniGen N_p / 4 and 64."""
    cost = lambda name, **o: make("refresh", name, o).cost(4096, 128, 32)  # noqa: E731
    assert (cost("rcr").held, cost("rcr").dots, cost("rcr").fetched) == (256, 256, 160)
    assert (cost("infinigen").held, cost("infinigen").fetched) == (1024, 64)
    assert (cost("quest").fetched, cost("arkvale").fetched) == (64, 64)


def test_staleness_by_hand(llama):
    """`stayed` and `drift` of a one-shot branch against a loop over the full cache."""
    leaders, drifts = [], []
    with torch.inference_mode():
        prompt = prefill(llama, inputs_of(llama), window=WINDOW)
        one = method()
        kept = to_sets(kept_mask(one, observe(prompt)))
        recorded = []
        plans = [plan_of(one, 90, DIM, True)]
        decode(llama, prompt, [kept], max_new_tokens=6, stop_ids=(), plans=plans, traces=recorded)

        class State:
            tails = [[] for _ in range(LAYERS)]

            def attend(self, layer, query, key, value, scaling):
                self.tails[layer].append((key[0], value[0]))
                tail = [torch.cat([t[i] for t in self.tails[layer]], 1) for i in (0, 1)]
                out = []
                drift, leader = 0.0, []
                for h in range(HEADS):
                    q = query[0, h * GROUP : (h + 1) * GROUP, 0]
                    at = kept[layer][h]
                    keys = torch.cat([prompt.key_stack[layer, h], tail[0][h]])
                    p = (q @ keys.T * scaling).softmax(-1)
                    gone = torch.ones(len(keys), dtype=torch.bool)
                    gone[at] = False
                    gone[90:] = False
                    drift += float(p[:, gone].sum(-1).mean()) / HEADS
                    leader.append(int(p.mean(0)[:82].argmax()))
                    held = torch.cat([prompt.key_stack[layer, h, at], tail[0][h]])
                    values = torch.cat([prompt.value_stack[layer, h, at], tail[1][h]])
                    out.append((q @ held.T * scaling).softmax(-1) @ values)
                drifts.append(drift)
                leaders.append(leader)
                return torch.cat(out).view(1, 1, HEADS * GROUP, DIM)

        state, token = State(), int(prompt.logits.argmax())
        for step in range(5):
            token = int(llama.step(torch.tensor([token]), prompt.next_position + step, state).argmax())
    expected = torch.tensor(drifts).view(5, LAYERS)
    torch.testing.assert_close(torch.from_numpy(recorded[0].drift), expected, atol=1e-5, rtol=1e-4)
    leaders = torch.tensor(leaders).view(5, LAYERS, HEADS)
    stayed = (leaders[1:] == leaders[:-1]).float().mean(-1)
    assert torch.equal(torch.from_numpy(recorded[0].stayed[1:]), stayed)


def test_traces_survive_the_disk(traced, tmp_path):
    path = tmp_path / "deep" / "traces.parquet"
    rows = [(name, sample, answer.trace) for sample in (3, "x") for name, answer in traced.items()]
    traces.write(path, rows)
    table = traces.read(path)
    assert tuple(table.columns) == traces.COLUMNS
    assert len(table) == 2 * len(traced) * 19 * LAYERS
    assert [p.name for p in path.parent.iterdir()] == ["traces.parquet"]
    part = table[(table["cell"] == "rcr-0.05") & (table["sample"] == "x")]
    assert part["drift"].tolist() == traced["rcr-0.05"].trace.drift.ravel().tolist()
    assert part["step"].tolist()[:4] == [0, 0, 0, 1] and part["layer"].tolist()[:4] == [0, 1, 2, 0]
    assert str(table["drift"].dtype) == "float32" and str(table["refreshed"].dtype) == "uint8"
    traces.write(path, [])
    assert len(traces.read(path)) == 0 and tuple(traces.read(path).columns) == traces.COLUMNS


def test_one_token_leaves_an_empty_trace(llama):
    answers = generate(
        llama,
        inputs_of(llama),
        [method({"name": "rcr"}), method({"name": "oracle"})],
        max_new_tokens=1,
        trace=True,
    )
    assert [a.trace.drift.shape for a in answers] == [(0, LAYERS)] * 2


# Bad input ----------------------------------------


@pytest.mark.parametrize(
    ("refresh", "words"),
    [
        ({"name": "rcr", "selected": 20}, "more than the budget 24: raise the budget to 28"),
        ({"name": "rcr", "selected": 8}, "leaves 8 of the budget 24 unused"),
        ({"name": "rcr", "candidates": 15}, "cannot select 16 entries out of 15 candidates"),
        ({"name": "quest", "page": 5}, "page of 5 does not divide the 16 selected"),
        ({"name": "arkvale", "page": 32}, "page of 32 does not divide the 16 selected"),
        ({"name": "rcr", "rho": 1.01}, "rho"),
        ({"name": "rcr", "rho": -0.1}, "rho"),
        ({"name": "rcr", "tau": -1.0}, "tau"),
        ({"name": "rcr", "group": "sum"}, "mean, max, logits"),
        ({"name": "exact", "tau": 0.1}, "refresh `exact` has no option `tau`"),
        ({"name": "rrc"}, "did you mean rcr"),
    ],
    ids=ident,
)
def test_bad_options_are_one_sentence(refresh, words):
    with pytest.raises(UserError) as error:
        method(refresh)
    assert words in str(error.value) and str(error.value).count("\n") == 0


def test_bad_combinations(llama):
    with pytest.raises(UserError, match="equally many entries in every head"):
        method({"name": "rcr"}, name="adakv")
    with pytest.raises(UserError, match="above the model's head dimension 16"):
        tokens(llama, [method({"name": "rcr", "rank": 17})])
    with pytest.raises(UserError, match="above the model's head dimension 16"):
        tokens(llama, [method({"name": "infinigen", "rank": 17})])
    with pytest.raises(UserError, match="fills its window of 8, but this one has 5"):
        tokens(llama, [method({"name": "rcr"})], length=5)
    assert build({"name": "fullkv", "refresh": {"name": "rcr"}}, None).refresh is None
    assert method({"name": "none"}).refresh is None and method(None).refresh is None


@pytest.mark.parametrize("name", ["rcr", "threshold"])
def test_as_many_candidates_as_are_selected_are_enough(name):
    make("refresh", name, {"candidates": SELECTED}).check(SELECTED)
    with pytest.raises(UserError, match="candidates"):
        make("refresh", name, {"candidates": SELECTED - 1}).check(SELECTED)


@pytest.mark.parametrize("made", [[True], [True, False], [False]])
def test_the_prompt_is_let_go_where_cpu_memory_alone_is_read(made):
    """Two stand-ins for devices: on the CPU both copies would be one tensor."""
    prompt = SimpleNamespace(key_stack="device keys", value_stack="device values")
    prefixes = engine_refresh.Prefixes(prompt)
    prefixes._made = {offload: SimpleNamespace(keys=f"keys {offload}", values="values") for offload in made}
    prefixes.release()
    host = made == [True]
    assert prompt.key_stack == ("keys True" if host else "device keys")
    assert prompt.value_stack == ("values" if host else "device values")


def test_one_head_with_a_tie_at_the_edge_among_heads_without():
    """Every head on its own: ties go to the lower position, whatever the heads beside it hold."""
    make_scores = torch.Generator().manual_seed(5)
    tied = torch.randint(0, 6, (4, 3, 200), generator=make_scores).double()
    tied[:, 1:] += torch.rand(4, 2, 200, generator=make_scores, dtype=torch.float64) / 2
    for count in (3, 40, 111):
        expected = tied.argsort(dim=-1, descending=True, stable=True)[..., :count].sort(-1).values
        assert torch.equal(Step.top(tied, count), expected)
