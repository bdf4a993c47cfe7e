"""Scores and capacities against brute force: plain loops from the papers' equations, no shared code."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.methods import build, contract, names
from kvbench.methods.observation import Observation
from kvbench.methods.select import kept_mask, select

L, H, G, N, D, W = 4, 2, 3, 41, 8, 6
M = N - W


def tensors(seed=0, layers=L, length=N, window=W):
    """Keys with a common direction and unequal norms, so that cosine and Euclidean views differ."""
    make = torch.Generator().manual_seed(seed)
    keys = torch.randn(layers, H, length, D, generator=make) * (
        0.4 + torch.rand(layers, H, length, 1, generator=make)
    )
    keys = keys + torch.randn(layers, H, 1, D, generator=make)
    values = torch.randn(layers, H, length, D, generator=make) * (
        0.2 + torch.rand(layers, H, length, 1, generator=make)
    )
    queries = 2 * torch.randn(layers, H * G, window, D, generator=make)
    return keys, values, queries


def scores_of(name, budget, window=W, seed=0, capacity="uniform", extra=None, length=N, **options):
    """[L, H, M] scores by the code under test."""
    keys, values, queries = tensors(seed, length=length, window=window)
    spec = {"name": f"{capacity}+{name}", "window": window, "score": options}
    method = build(spec, budget)
    view = Observation(keys, values, queries, **(extra or {})).view(window, *method.base)
    return method.score(view, method.capacity(view, budget - window))


# Brute force: everything below is lists of Python floats, one head at a time.


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def norm(a):
    return math.sqrt(dot(a, a))


def mean(values):
    return sum(values) / len(values)


def deviation(values):
    return math.sqrt(mean([(x - mean(values)) ** 2 for x in values]))


def softmax_row(query, keys, last):
    """Attention of one query to keys[0..last]."""
    logits = [dot(query, keys[i]) / math.sqrt(len(query)) for i in range(last + 1)]
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    return [x / sum(powers) for x in powers]


def pool(row, kernel=5, how="avg"):
    half, out = kernel // 2, []
    for i in range(len(row)):
        near = [row[j] for j in range(i - half, i + half + 1) if 0 <= j < len(row)]
        out.append(max(near) if how == "max" else sum(near) / kernel)
    return out


def group_reduce(rows, how="mean"):
    return [(max if how == "max" else mean)([row[i] for row in rows]) for i in range(len(rows[0]))]


def window_b(keys, queries, window, reduce="mean", kernel=5, how="avg"):
    """b of one KV head: keys [N][d], queries [G][w][d]."""
    n = len(keys)
    rows = []
    for head in queries:
        attention = [softmax_row(head[-window + t], keys, n - window + t) for t in range(window)]
        rows.append([mean([row[i] for row in attention]) for i in range(n - window)])
    reduced = group_reduce(rows, reduce)
    return reduced if how == "none" else pool(reduced, kernel, how)


def last_q(keys, queries, window):
    n = len(keys)
    rows = [softmax_row(head[-1], keys, n - 1)[: n - window] for head in queries]
    return pool(group_reduce(rows))


def scale01(values):
    low, high = min(values), max(values)
    return [(x - low) / (high - low) for x in values]


def to_mean(values, target):
    return [x * mean(target) / mean(values) for x in values]


def heads(keys, values, queries):
    """(layer, head, keys, values, queries) of every head as nested lists."""
    for layer in range(keys.shape[0]):
        for head in range(H):
            group = queries[layer, head * G : (head + 1) * G].double().tolist()
            yield (
                layer,
                head,
                keys[layer, head].double().tolist(),
                values[layer, head].double().tolist(),
                group,
            )


def brute_importance(k, v, q, window):
    b = window_b(k, q, window)
    norms = to_mean(scale01([norm(x) for x in v[: len(b)]]), b)
    return [x + y for x, y in zip(b, norms, strict=True)], b


def geometry(k):
    """mu, raw centroid and mean off-diagonal cosine."""
    n = len(k)
    unit = [[x / norm(key) for x in key] for key in k]
    mu = [mean([u[j] for u in unit]) for j in range(D)]
    centre = [mean([key[j] for key in k]) for j in range(D)]
    pairs = [dot(unit[i], unit[j]) for i in range(n) for j in range(n) if i != j]
    return unit, mu, centre, sum(pairs) / (n * (n - 1))


def close(actual, expected):
    assert torch.allclose(actual.double(), torch.tensor(expected, dtype=torch.float64), rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("how,kernel", [("avg", 5), ("avg", 3), ("max", 7), ("none", 5)])
def test_window(reduce, how, kernel):
    ours = scores_of("window", 16, reduce=reduce, pool=how, kernel=kernel)
    for layer, head, k, _, q in heads(*tensors()):
        close(ours[layer, head], window_b(k, q, W, reduce, kernel, how))


@pytest.mark.parametrize("scale", ["base", "importance"])
@pytest.mark.parametrize("window", [1, 2, 6])
def test_mixkv(window, scale):
    ours = scores_of("mixkv", 16, window=window, scale=scale)
    for layer, head, k, v, q in heads(*tensors(window=window)):
        importance, b = brute_importance(k, v, q, window)
        unit, mu, _, r = geometry(k)
        target = b if scale == "base" else importance
        diversity = to_mean(scale01([-dot(u, mu) for u in unit[: len(b)]]), target)
        close(ours[layer, head], [r * s + (1 - r) * i for s, i in zip(diversity, importance, strict=True)])


def test_mixkv_static_prior():
    prior = torch.rand(L, H, generator=torch.Generator().manual_seed(9))
    ours = scores_of("mixkv", 16, extra={"mixkv_weight": prior}, weight="static")
    for layer, head, k, v, q in heads(*tensors()):
        importance, b = brute_importance(k, v, q, W)
        unit, mu, _, _ = geometry(k)
        diversity = to_mean(scale01([-dot(u, mu) for u in unit[: len(b)]]), b)
        r = prior[layer, head].item()
        close(ours[layer, head], [r * s + (1 - r) * i for s, i in zip(diversity, importance, strict=True)])


def quantile(values, share):
    ranked = sorted(values)
    at = share * (len(ranked) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (at - low) * (ranked[high] - ranked[low])


def brute_ecokv(k, v, q, window, o):
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    m = len(k) - window
    unit, mu, centre, r_c = geometry(k)
    if o.get("centroid") == "nonwindow":
        centre = [mean([key[j] for key in k[:m]]) for j in range(D)]
    d = [norm([x - c for x, c in zip(k[i], centre, strict=True)]) for i in range(m)]
    how = o.get("normalise", "minmax")
    if how == "mad":
        median = quantile(d, 0.5)
        mad = quantile([abs(x - median) for x in d], 0.5)
        s_e = [sigmoid((x - median) / mad / o.get("mad_temperature", 1.0)) for x in d]
    else:
        clipped = d
        if how != "minmax":
            share = int(how[-1]) / 100
            low, high = quantile(d, share), quantile(d, 1 - share)
            clipped = [min(max(x, low), high) for x in d]
        low, high = min(clipped), max(clipped)
        s_e = [(x - low) / (high - low + o.get("epsilon", 1e-8)) for x in clipped]
    cosine = [dot(unit[i], mu) for i in range(m)]
    s_c = [(1 + c) / 2 if o.get("printed_sign") else (1 - c) / 2 for c in cosine]
    alpha, beta = o.get("alpha", 0.8), o.get("beta", 0.6)
    s_div = [alpha * e + (1 - alpha) * c for e, c in zip(s_e, s_c, strict=True)]
    tau = o.get("tau") or math.sqrt(D)
    if o.get("redundancy", "euclidean") != "euclidean":
        r_e = 1 - sigmoid(math.sqrt(mean([x * x for x in d])) / tau)
    else:
        r_e = 2 - 2 * sigmoid(mean(d) / tau)
    weight = min(max(beta * r_e + (1 - beta) * r_c, 0), 1)
    if o.get("redundancy") == "std_weight":
        weight = r_e
    importance, b = brute_importance(k, v, q, window)
    diversity = to_mean(scale01(s_div), b if o.get("scale") == "base" else importance)
    return [weight * s + (1 - weight) * i for s, i in zip(diversity, importance, strict=True)]


ECO = [
    {},
    {"alpha": 0.3},
    {"beta": 0.1},
    {"tau": 1.7},
    {"centroid": "nonwindow"},
    {"normalise": "winsor1"},
    {"normalise": "winsor5"},
    {"normalise": "mad"},
    {"normalise": "mad", "mad_temperature": 2.0},
    {"redundancy": "std"},
    {"redundancy": "std_weight"},
    {"scale": "base"},
    {"printed_sign": True},
    {"epsilon": 0.5},
]


@pytest.mark.parametrize("options", ECO, ids=str)
def test_ecokv(options):
    ours = scores_of("ecokv", 16, window=4, **options)
    for layer, head, k, v, q in heads(*tensors(window=4)):
        close(ours[layer, head], brute_ecokv(k, v, q, 4, options))
    if options:  # the switch does something
        assert not torch.allclose(ours, scores_of("ecokv", 16, window=4), rtol=1e-4)


def test_ecokv_weight_is_clamped():
    keys, values, queries = tensors(window=4)
    keys = keys * torch.tensor([1.0, -1.0]).repeat(N)[:N].view(
        1, 1, N, 1
    )  # alternate signs: negative mean cosine
    method = build({"name": "snapkv+ecokv", "score": {"beta": 0.0}}, 16)
    view = Observation(keys, values, queries).view(4)
    assert bool((view.redundancy < 0).any())
    below = view.redundancy < 0
    assert torch.equal(method.score(view, None)[below], view.importance[below])


def brute_residual(k, q, residual, by):
    """E of one KV head: pooled before [.]+ (base), never (raw), or after it (pooled); per group or query."""
    how = "avg" if residual == "base" else "none"
    groups = [q] if by == "group" else [[head] for head in q]
    found = []
    for group in groups:
        last = group_reduce([softmax_row(head[-1], k, len(k) - 1)[: len(k) - W] for head in group])
        last = pool(last) if how == "avg" else last
        mean_row = window_b(k, group, W, how=how)
        found.append([max(x - y, 0) for x, y in zip(last, mean_row, strict=True)])
    found = group_reduce(found)
    return pool(found) if residual == "pooled" else found


def brute_bacon(keys, values, queries, selected, o):
    """{(layer, head): scores}, by the paper's equations 1 to 16."""
    use = [o.get(x, True) for x in ("evidence", "coherence", "persistence")]
    r, m, rho, gamma = o.get("radius", 5), o.get("depth", 4), o.get("rho", 2.0), o.get("gamma", 0.5)
    released = o.get("variant") == "released"
    residual, base, out = {}, {}, {}
    for layer, head, k, _, q in heads(keys, values, queries):
        residual[layer, head] = brute_residual(k, q, o.get("residual", "base"), o.get("heads", "group"))
        base[layer, head] = window_b(k, q, W)
    for (layer, head), e in residual.items():
        b, v = base[layer, head], []
        for i in range(len(e)):
            value = e[i] if use[0] else 0.0
            if use[1] and r and released:
                value += pool(e, r)[i]
            elif use[1] and r:  # the row of table 7 for r = 0 has no term L
                value += mean([e[u] for u in range(len(e)) if abs(u - i) <= r])
            before = [residual[j, head][i] for j in range(max(0, layer - m), layer)]
            if use[2] and before:
                value += mean(before)
            v.append(value)
        size = min(int(rho * selected[layer][head]), len(b))
        top = sorted(range(len(b)), key=lambda i: (-b[i], i))[:size]
        top_v = sorted(range(len(v)), key=lambda i: (-v[i], i))[:size] if released else top
        lam = gamma * deviation([b[i] for i in top]) / (deviation([v[i] for i in top_v]) + 1e-8)
        if released:
            lam *= min(max(mean(v) / mean(b), 0), 1)
        out[layer, head] = [x + lam * y for x, y in zip(b, v, strict=True)]
    return out


BACON = [
    {},
    {"evidence": False},
    {"coherence": False},
    {"persistence": False},
    {"radius": 0},
    {"radius": 2},
    {"depth": 0},
    {"depth": 2},
    {"rho": 1.0},
    {"rho": 3.5},
    {"rho": 1.45},  # 11.6 entries: 11
    {"gamma": 1.5},
    {"variant": "released"},
    {"variant": "released", "radius": 3},
    {"variant": "released", "radius": 0},
    {"residual": "raw"},
    {"residual": "pooled"},
    {"heads": "query"},
    {"heads": "query", "residual": "pooled"},
]


@pytest.mark.parametrize("options", BACON, ids=str)
def test_bacon(options):
    ours = scores_of("bacon", 14, **options)
    theirs = brute_bacon(*tensors(), [[14 - W] * H] * L, options)
    for (layer, head), expected in theirs.items():
        close(ours[layer, head], expected)
    if options:
        assert not torch.allclose(ours, scores_of("bacon", 14), rtol=1e-4)


def test_bacon_scales_by_each_heads_own_capacity():
    """Under adakv the scale-matching region follows the head's capacity, and capacities stay those of b."""
    keys, values, queries = tensors(5)
    method = build({"name": "adakv+bacon", "window": W}, 14)
    view = Observation(keys, values, queries).view(W)
    selected = method.capacity(view, 14 - W)
    assert len(selected.unique()) > 1
    assert torch.equal(selected, build({"name": "adakv", "window": W}, 14).capacity(view, 14 - W))
    ours = method.score(view, selected)
    for (layer, head), expected in brute_bacon(keys, values, queries, selected.tolist(), {}).items():
        close(ours[layer, head], expected)


@pytest.mark.parametrize(
    "options", [{}, {"variant": "released"}, {"variant": "released", "gamma": 2.0}], ids=str
)
def test_bacon_with_a_last_query_unlike_the_others(options):
    """Evidence larger than the base on average: the released variant's damping reaches its upper bound."""
    keys, values, queries = tensors(3)
    queries[:, :, -1] *= 8
    method = build({"name": "snapkv+bacon", "window": W, "score": options}, 14)
    view = Observation(keys, values, queries).view(W)
    ours = method.score(view, method.capacity(view, 14 - W))
    assert bool((method.score._evidence(view).mean(-1) > view.b.mean(-1)).any())
    for (layer, head), expected in brute_bacon(keys, values, queries, [[14 - W] * H] * L, options).items():
        close(ours[layer, head], expected)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_bacon_leaves_b_where_its_region_has_no_spread(variant):
    """A region of one entry, or of none, has deviation 0: lambda is 0, never NaN."""
    keys, values, queries = tensors()
    method = build({"name": "adakv+bacon", "window": W, "score": {"rho": 1.0, "variant": variant}}, W + 1)
    view = Observation(keys, values, queries).view(W)
    selected = torch.tensor([[0, 1]] * L)
    assert torch.equal(method.score(view, selected), view.b)


def test_bacons_epsilon_is_added_to_the_spread_it_divides_by():
    plain, wide = (scores_of("bacon", 14, epsilon=e) - scores_of("window", 14) for e in (1e-8, 0.5))
    # The added term is γ · std_b / (std_v + ε) · V: of one sign, and smaller the larger ε is.
    assert bool((plain * wide >= 0).all()) and float(wide.abs().sum()) < float(plain.abs().sum())
    assert bool((wide.abs() <= plain.abs()).all())


def test_bacon_without_terms_is_window():
    off = {"evidence": False, "coherence": False, "persistence": False}
    assert torch.equal(scores_of("bacon", 14, **off), scores_of("window", 14))


def test_simple_scores():
    keys, values, queries = tensors()
    sums = torch.rand(L, H * G, N, generator=torch.Generator().manual_seed(1))
    mask = torch.rand(N, generator=torch.Generator().manual_seed(2)) < 0.6
    ours = {
        n: scores_of(n, 16) for n in ("knorm", "vnorm", "keydiff", "manifoldkv", "last_query", "rkv", "tova")
    }
    ours["h2o"] = scores_of("h2o", 16, extra={"attention_sums": sums})
    ours["h2o max"] = scores_of("h2o", 16, extra={"attention_sums": sums}, reduce="max")
    ours["lookm"] = scores_of("lookm", 16, extra={"visual_mask": mask})
    ours["tova group"] = scores_of("tova", 16, over="group")
    for layer, head, k, v, q in heads(keys, values, queries):
        unit, mu, centre, _ = geometry(k)
        b = window_b(k, q, W)
        close(ours["knorm"][layer, head], [-norm(x) for x in k[:M]])
        close(ours["vnorm"][layer, head], [norm(x) for x in v[:M]])
        close(ours["keydiff"][layer, head], [-dot(u, mu) / norm(mu) for u in unit[:M]])
        close(ours["manifoldkv"][layer, head], [math.dist(x, centre) for x in k[:M]])
        close(ours["last_query"][layer, head], last_q(k, q, W))
        close(ours["h2o"][layer, head], sums[layer, head * G : (head + 1) * G, :M].double().mean(0).tolist())
        close(
            ours["h2o max"][layer, head], sums[layer, head * G : (head + 1) * G, :M].double().amax(0).tolist()
        )
        ordered = sorted(range(M), key=lambda i: (bool(mask[i]), -b[i]))
        assert ours["lookm"][layer, head].argsort(descending=True).tolist() == ordered
        cosine = [mean([dot(unit[i], unit[j]) for j in range(N) if j != i]) for i in range(M)]
        powers = [math.exp(c) for c in cosine]
        close(
            ours["rkv"][layer, head],
            [0.1 * x - 0.9 * p / sum(powers) for x, p in zip(b, powers, strict=True)],
        )
        rows = [softmax_row(h[-1], k, N - 1)[:M] for h in q]
        close(ours["tova group"][layer, head], group_reduce(rows))
    for layer in range(L):
        rows = []
        for index in range(H * G):
            key = keys[layer, index // G].double().tolist()
            rows.append(softmax_row(queries[layer, index, -1].double().tolist(), key, N - 1)[:M])
        for head in range(H):
            close(ours["tova"][layer, head], group_reduce(rows))


def test_lookm_keeps_text_however_little_it_is_looked_at():
    """A picture's token with all of the attention goes after text that has next to none, which is ordered."""
    keys, values, queries = (torch.zeros(1, 1, n, D) for n in (N, N, W))
    keys[..., 0] = torch.linspace(-2, 2, N)
    keys[0, 0, 4, 0], queries[..., 0] = 60.0, 30.0
    mask = torch.arange(N) < 9
    method = build({"name": "snapkv+lookm", "window": W, "score": {"pool": "none"}}, 16)
    view = Observation(keys, values, queries, mask).view(W, *method.base)
    assert float(view.b[0, 0, 4]) == 1 and float(view.b[0, 0, 10]) < 1e-30
    text = [i for i in range(M) if not mask[i]]
    ours = method.score(view, None)[0, 0].argsort(descending=True, stable=True).tolist()
    assert set(ours[: len(text)]) == set(text) and ours[len(text)] == 4
    queries[..., 0] = 1.0  # text has about e-25 of the attention: in order still
    view = Observation(keys, values, queries, mask).view(W, *method.base)
    ours = method.score(view, None)[0, 0].argsort(descending=True, stable=True).tolist()
    assert ours[: len(text)] == sorted(text, key=lambda i: -float(view.b[0, 0, i]))
    assert len({float(view.b[0, 0, i]) for i in text}) == len(text)


def test_streaming_keeps_sinks_then_the_latest():
    keys, values, queries = tensors()
    kept = select(keys, values, queries, method="snapkv+streaming", budget=16, window=W, sinks=3)
    assert kept[0][0].tolist() == [0, 1, 2, *range(M - 7, N)]
    few = select(keys, values, queries, method="snapkv+streaming", budget=W + 2, window=W)
    assert few[1][1].tolist() == [0, 1, *range(M, N)]


def test_random_depends_on_the_seed_alone():
    one, again, other = (scores_of("random", 16, seed=s) for s in (0, 1, 2))
    assert torch.equal(one, again) and torch.equal(one, other)  # not on the content
    assert not torch.equal(one, scores_of("random", 16, **{}, seed=0) * 0)
    keys, values, queries = tensors()
    a, b = (
        select(keys, values, queries, method="snapkv+random", budget=16, window=W, score={"seed": s})
        for s in (0, 1)
    )
    assert any(x.tolist() != y.tolist() for x, y in zip(sum(a, []), sum(b, []), strict=True))


def test_every_score_is_covered_here():
    known = {"window", "mixkv", "ecokv", "bacon", "knorm", "vnorm", "keydiff", "manifoldkv", "h2o",
             "streaming", "tova", "last_query", "random", "lookm", "rkv"}  # fmt: skip
    assert set(names("score")) >= known


# Capacities


def capacities(name, budget, seed=0, length=N, extra=None, layers=L, **options):
    keys, values, queries = tensors(seed, layers=layers, length=length)
    method = build({"name": name, "window": W, "capacity": options}, budget)
    view = Observation(keys, values, queries, **(extra or {})).view(W)
    return method.capacity(view, budget - W)


def half_even(x):
    return round(x)


class Ranked:
    """A view of which a capacity reads b, ranked, alone."""

    def __init__(self, *heads):
        self.b_ranked = torch.tensor([heads])


@pytest.mark.parametrize("floor,size,won", [(0.0, 10, 20), (0.95, 30, 50), (0.18, 100, 125), (0.2, 10, 3)])
def test_adakv_counts_what_each_head_wins(floor, size, won):
    """Head 0 wins `won` of the pool by construction, so head 1 has the rest, be it none."""
    high = [1.0] * won + [0.1] * (300 - won)
    low = [0.5] * (2 * size - won) + [0.1] * (300 - 2 * size + won)
    make = build({"name": "adakv", "capacity": {"floor": floor, "normalise": False}}, 400).capacity
    expected = [half_even(count * (1 - floor) + int(floor * size)) for count in (won, 2 * size - won)]
    assert make(Ranked(high, low), size).tolist() == [expected]


@pytest.mark.parametrize("floor", [0.0, 0.2, 0.35])
@pytest.mark.parametrize("normalise", [True, False])
def test_adakv_capacity(floor, normalise):
    budget = 15
    ours = capacities("adakv", budget, floor=floor, normalise=normalise)
    size = budget - W
    keys, values, queries = tensors()
    per_head = {(layer, head): window_b(k, q, W) for layer, head, k, _, q in heads(keys, values, queries)}
    for layer in range(L):
        flat = []
        for head in range(H):
            b = sorted(per_head[layer, head], reverse=True)
            weight = sum(b[:size]) / sum(b) if normalise else 1.0
            flat += [(-x * weight, head) for x in b]
        winners = [head for _, head in sorted(flat)[: H * size]]
        for head in range(H):
            expected = half_even(winners.count(head) * (1 - floor) + int(floor * size))
            assert ours[layer, head] == expected


def test_adakv_ties_go_to_the_lower_head():
    b = torch.randint(0, 3, (3000,), generator=torch.Generator().manual_seed(0)).sort(descending=True).values
    make = build({"name": "adakv", "capacity": {"floor": 0.0, "normalise": False}}, 2000).capacity
    order = sorted((-x, head, i) for head in (0, 1) for i, x in enumerate(b.tolist()))
    for size in (100, 700, 1500):
        won = [head for _, head, _ in order[: 2 * size]]
        assert make(Ranked(b.tolist(), b.tolist()), size).tolist() == [[won.count(0), won.count(1)]]


@pytest.mark.parametrize("name", ["mixkv", "bacon"])
def test_adakv_may_share_by_the_score_that_selects(name):
    """A head's share is what its scores win of the layer's pool, weighed by the part of its own top B."""
    budget, size = 15, 15 - W
    inputs = tensors(3)
    score = build({"name": f"snapkv+{name}", "window": W}, budget)
    view = Observation(*inputs).view(W)
    per_head = score.score(view, torch.full((L, H), size)).clamp(min=0)  # uniform counts: bacon asks for them
    method = build(
        {"name": f"adakv+{name}", "window": W, "capacity": {"share": "score", "floor": 0.0}}, budget
    )
    ours = contract.capacity(method, view)
    for layer in range(L):
        flat = []
        for head in range(H):
            row = sorted(per_head[layer, head].double().tolist(), reverse=True)
            flat += [(-x * sum(row[:size]) / sum(row), head) for x in row]
        winners = [head for _, head in sorted(flat)[: H * size]]
        assert ours[layer].tolist() == [winners.count(head) for head in range(H)]
    by_b = build({"name": f"adakv+{name}", "window": W, "capacity": {"floor": 0.0}}, budget)
    assert not torch.equal(ours, contract.capacity(by_b, view))
    kept = kept_mask(method, Observation(*inputs)).sum(-1)
    assert torch.equal(kept.cpu(), ours + W)


def test_shares_by_one_score_are_not_anothers():
    """Methods of one sample share what they can: the counts only where no score decides them."""
    inputs = tensors(3)
    share = {"window": W, "capacity": {"share": "score"}}
    asked = (("mixkv", {}), ("bacon", {}), ("bacon", {"gamma": 3.0}), ("knorm", {}))
    methods = [build({"name": f"adakv+{name}", **share, "score": score}, 15) for name, score in asked]
    shared = Observation(*inputs)
    together = [kept_mask(method, shared) for method in methods]
    alone = [kept_mask(method, Observation(*inputs)) for method in methods]
    assert all(map(torch.equal, together, alone))
    assert len({tuple(mask.sum(-1).flatten().tolist()) for mask in alone}) > 1


@pytest.mark.parametrize("layers, size, length", [(4, 14, 41), (7, 24, 200), (28, 32, 500)])
def test_pyramid_steps_may_be_exact(layers, size, length):
    from fractions import Fraction

    low = size // 20
    high = 2 * size - low
    line = [high - Fraction(layer * (high - low), layers - 1) for layer in range(layers)]
    rounded = [math.floor(x + Fraction(1, 2)) for x in line]
    ours = capacities("pyramidkv", size + W, layers=layers, length=length, step="exact")
    assert ours[:, 0].tolist() == rounded == ours[:, 1].tolist()
    assert rounded[0] == high and rounded[-1] == low


@pytest.mark.parametrize("length, uniform", [(2 * 17 - 1, True), (2 * 17, False)])
def test_pyramid_may_be_uniform_for_short_prompts(length, uniform):
    ours = capacities("pyramidkv", 17 + W, length=length, fallback=True)
    plain = capacities("pyramidkv", 17 + W, length=length)
    assert torch.equal(ours, torch.full_like(ours, 17) if uniform else plain)
    assert len(plain.unique()) > 1


@pytest.mark.parametrize(
    "layers,budget,length",
    [(4, 20, 41), (7, 30, 200), (28, 38, 500), (28, 44, 500), (28, 38, 60), (1, 20, 41)],
)
def test_pyramid_schedule(layers, budget, length):
    from kvbench.methods.capacities.pyramid import schedule

    size, m = budget - W, length - W
    low = size // 20
    high = 2 * size - low
    if high >= m:
        high, low = m, 2 * size - m
    step = (high - low) // (layers - 1) if layers > 1 else 0
    expected = [high - layer * step for layer in range(layers)] if layers > 1 else [size]
    assert schedule(size, layers, m, 20, False) == expected
    exact = schedule(size, layers, m, 20, True)
    assert sum(exact) == layers * size
    assert (
        exact == sorted(exact, reverse=True)
        or max(a - b for a, b in zip(exact[1:], exact, strict=False)) <= 1
    )
    if layers > 1:
        slope = (high - low) / (layers - 1)
        assert all(abs(got - (high - layer * slope)) <= slope / 2 + 1 for layer, got in enumerate(exact))
        for count in range(
            layers + 1
        ):  # never more than half an entry off the straight line, halves rounded up
            line = count * high - slope * count * (count - 1) / 2
            assert -0.5 < sum(exact[:count]) - line <= 0.5 or math.isclose(sum(exact[:count]) - line, 0.5)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pyramid_falls_and_stays_within_the_candidates(data):
    from kvbench.methods.capacities.pyramid import schedule

    candidates, layers = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 40))
    size = data.draw(st.integers(1, candidates))
    beta = data.draw(st.integers(1, 30))
    for exact in (True, False):
        per_layer = schedule(size, layers, candidates, beta, exact)
        assert len(per_layer) == layers and all(0 <= count <= candidates for count in per_layer)
        assert sum(per_layer) == size * layers if exact else sum(per_layer) >= size * layers
        if not exact and layers > 1:
            assert len({a - b for a, b in zip(per_layer, per_layer[1:], strict=False)}) == 1  # linear
            assert per_layer == sorted(per_layer, reverse=True)
            assert per_layer[0] == min(2 * size - size // beta, candidates)


def test_pyramid_overspends_as_published():
    from kvbench.methods.capacities.pyramid import schedule

    assert 35 < mean(schedule(32, 28, 1000, 20, False)) < 37


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_sparsemm_capacity(ratio, tmp_path):
    scores = torch.rand(L, H * G, generator=torch.Generator().manual_seed(4)) ** 2
    budget, size = 20, 20 - W
    ours = capacities("sparsemm", budget, extra={"head_scores": scores}, ratio=ratio)
    total = scores.double().sum().item()
    least = int(ratio * size)
    for layer in range(L):
        for head in range(H):
            share = sum(scores[layer, head * G + g].double().item() for g in range(G)) / total
            assert ours[layer, head] == min(half_even(share * (size - least) * L * H + least), M)
    import json

    uneven = torch.rand(L, H * G, generator=torch.Generator().manual_seed(5))
    table = {
        f"{i}-{j}": [
            scores[i, j].item() * uneven[i, j].item(),
            scores[i, j].item() * (2 - uneven[i, j].item()),
        ]
        for i in range(L)
        for j in range(H * G)
    }
    (tmp_path / "heads.json").write_text(json.dumps(table))
    assert torch.equal(capacities("sparsemm", budget, scores=str(tmp_path / "heads.json"), ratio=ratio), ours)


def test_sparsemm_clips_to_the_prompt():
    scores = torch.full((L, H * G), 1e-6)
    scores[1, 0] = 1.0
    assert capacities("sparsemm", 30, extra={"head_scores": scores})[1, 0] == M
