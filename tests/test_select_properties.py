"""Properties of every method (hypothesis), input checks, and adding a method of one's own."""

import textwrap
from dataclasses import fields, make_dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvbench
from kvbench.errors import UserError
from kvbench.methods import build, load_plugin, method_names, names, options, parse, registry
from kvbench.methods.observation import Observation
from kvbench.methods.registry import lookup, make
from kvbench.methods.select import kept_mask, select, to_sets, top_mask

ALL = [m for m in method_names() if m != "fullkv"]


def case(seed, layers=2, heads=2, group=2, length=40, dim=8, window=4):
    make = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(layers, heads, length, dim, generator=make) for _ in range(2))
    queries = torch.randn(layers, heads * group, window, dim, generator=make)
    extra = {
        "head_scores": torch.rand(layers, heads * group, generator=make) + 0.01,
        "attention_sums": torch.rand(layers, heads * group, length, generator=make),
        "visual_mask": torch.rand(length, generator=make) < 0.5,
    }
    return (keys, values, queries), extra


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_every_method(data):
    name = data.draw(st.sampled_from(ALL))
    layers, heads, group = (data.draw(st.integers(1, top)) for top in (4, 3, 3))
    length, window = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 12))
    budget = data.draw(st.integers(window + 1, 80))
    inputs, extra = case(data.draw(st.integers(0, 99)), layers, heads, group, length, 4, min(window, length))
    kept = select(*inputs, method=name, budget=budget, window=window, **extra)
    assert len(kept) == layers and all(len(layer) == heads for layer in kept)
    capacity = None
    if budget < length:
        method = build({"name": name, "window": window}, budget)
        capacity = method.capacity(Observation(*inputs, **extra).view(window), budget - window)
    for i, layer in enumerate(kept):
        for j, positions in enumerate(layer):
            found = positions.tolist()
            assert found == sorted(set(found)) and set(found) <= set(range(length))
            if budget >= length or window >= length:
                assert found == list(range(length))
            else:
                assert found[-window:] == list(range(length - window, length))
                assert len(found) == window + int(capacity[i, j])
                assert 0 <= int(capacity[i, j]) <= length - window
    if capacity is not None and name.split("+")[0] in ("snapkv", "adakv"):
        total = int(capacity.sum()) / layers
        slack = (
            0 if name.startswith("snapkv") else 2 * heads
        )  # adakv rounds each head, and int() loses part of the floor
        assert abs(total - heads * (budget - window)) <= slack


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(ALL), seed=st.integers(0, 99))
def test_permuting_heads_permutes_the_result(name, seed):
    if name.split("+")[-1] == "random":
        return  # drawn by head number
    (keys, values, queries), extra = case(seed, heads=3)
    order = torch.tensor([2, 0, 1])
    wide = (order[:, None] * 2 + torch.arange(2)).flatten()
    before = select(keys, values, queries, method=name, budget=13, window=4, **extra)
    extra = {**extra, **{k: extra[k][:, wide] for k in ("head_scores", "attention_sums")}}
    after = select(
        keys[:, order], values[:, order], queries[:, wide], method=name, budget=13, window=4, **extra
    )
    for old, new in zip(before, after, strict=True):
        assert [old[i].tolist() for i in order.tolist()] == [head.tolist() for head in new]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 99),
    name=st.sampled_from(["keydiff", "knorm", "vnorm", "manifoldkv", "streaming", "random"]),
)
def test_attention_free_scores_ignore_queries(seed, name):
    (keys, values, queries), _ = case(seed)
    a = select(keys, values, queries, method=f"snapkv+{name}", budget=12, window=4)
    b = select(keys, values, queries * 7 - 3, method=f"snapkv+{name}", budget=12, window=4)
    assert [h.tolist() for layer in a for h in layer] == [h.tolist() for layer in b for h in layer]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 99),
    name=st.sampled_from(["window", "last_query", "tova", "mixkv", "ecokv", "bacon", "vnorm"]),
)
def test_scores_see_values_by_norm_alone(seed, name):
    (keys, values, queries), _ = case(seed)
    a = select(keys, values, queries, method=f"snapkv+{name}", budget=12, window=4)
    b = select(keys, -values.flip(-1), queries, method=f"snapkv+{name}", budget=12, window=4)
    assert [h.tolist() for layer in a for h in layer] == [h.tolist() for layer in b for h in layer]


def test_keydiff_is_invariant_to_key_scale():
    (keys, values, queries), _ = case(1)
    scale = 0.5 + torch.rand(keys.shape[:3], generator=torch.Generator().manual_seed(0)).unsqueeze(-1)
    a = select(keys, values, queries, method="snapkv+keydiff", budget=12, window=4)
    b = select(keys * scale, values, queries, method="snapkv+keydiff", budget=12, window=4)
    assert [h.tolist() for layer in a for h in layer] == [h.tolist() for layer in b for h in layer]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(0, 20))
def test_ties_go_to_the_lower_position(values, size):
    size = min(size, len(values))
    mask = top_mask(torch.tensor(values, dtype=torch.float32).view(1, 1, -1), torch.tensor([[size]]))
    expected = sorted(sorted(range(len(values)), key=lambda i: (-values[i], i))[:size])
    assert mask[0, 0].nonzero().flatten().tolist() == expected


def test_window_survives_equal_and_extreme_scores():
    keys = torch.zeros(1, 1, 20, 4)
    kept = select(keys, keys, torch.zeros(1, 1, 4, 4), method="snapkv+vnorm", budget=6, window=4)
    assert kept[0][0].tolist() == [0, 1, 16, 17, 18, 19]
    values = torch.zeros(1, 1, 20, 4)
    values[0, 0, 3:9] = 1e18
    kept = select(keys + 1, values, torch.zeros(1, 1, 4, 4), method="snapkv+vnorm", budget=6, window=4)
    assert kept[0][0].tolist() == [3, 4, 16, 17, 18, 19]


def test_budgets_of_one_sample_share_scores_and_agree_with_separate_runs():
    inputs, extra = case(4, layers=3)
    shared = Observation(*inputs, **extra)
    for name in ALL:
        for budget in (8, 13, 21):
            method = build({"name": name, "window": 4}, budget)
            together = to_sets(kept_mask(method, shared))
            alone = select(*inputs, method=name, budget=budget, window=4, **extra)
            assert [h.tolist() for x in together for h in x] == [h.tolist() for x in alone for h in x]


def test_methods_of_one_sample_do_not_mix_up_windows_and_options():
    inputs, extra = case(8, layers=3, window=8)
    shared = Observation(*inputs, **extra)
    for name in (
        "snapkv",
        "adakv+mixkv",
        "snapkv+ecokv",
        "snapkv+bacon",
        "snapkv+last_query",
        "snapkv+knorm",
    ):
        options = [{"pool": "none"}, {"reduce": "max"}, {"kernel": 3}] if name != "snapkv+knorm" else []
        for window in (2, 4, 8):
            for score in [{}, *options]:
                method = build({"name": name, "window": window, "score": score}, 14)
                together = to_sets(kept_mask(method, shared))
                alone = select(*inputs, method=name, budget=14, window=window, score=score, **extra)
                assert [h.tolist() for x in together for h in x] == [h.tolist() for x in alone for h in x]


def other_values(field):
    """Values of an option that differ from its default, as the registry allows them."""
    help_, default = field.metadata, field.default
    if isinstance(default, bool):
        return [not default]
    if help_.get("choices"):
        return [choice for choice in help_["choices"] if choice != default]
    if isinstance(default, int):
        return [default + 2]
    if isinstance(default, float):
        return [0.9 * default + 0.05]
    return []


@pytest.mark.parametrize("name", names("score"))
def test_settings_of_one_sample_do_not_share_what_differs(name):
    """Each option of each score, on one observation after all the others, scores as it does alone."""
    inputs, extra = case(8, layers=7, window=8)
    extra["mixkv_weight"] = torch.rand(7, 2, generator=torch.Generator().manual_seed(1))
    shared = Observation(*inputs, **extra)
    grid = [{}] + [{f.name: v} for f in fields(lookup("score", name)) for v in other_values(f)]
    if name == "bacon":
        grid += [{"variant": "released", "radius": 3}]
    for window in (8, 4):
        for score in grid:
            method = build({"name": f"adakv+{name}", "window": window, "score": score}, 14)
            found = []
            for observation in (shared, Observation(*inputs, **extra)):
                view = observation.view(window, *method.base)
                found.append(method.score(view, method.capacity(view, 14 - window)))
            assert torch.equal(*found), (window, score)


def test_bigger_budgets_keep_what_smaller_ones_kept():
    inputs, extra = case(6)
    for name in ("snapkv", "snapkv+mixkv", "snapkv+ecokv", "snapkv+rkv"):
        small, big = (select(*inputs, method=name, budget=b, window=4, **extra) for b in (10, 20))
        assert all(
            set(a.tolist()) <= set(b.tolist())
            for x, y in zip(small, big, strict=True)
            for a, b in zip(x, y, strict=True)
        )


def test_default_windows():
    assert build({"name": "snapkv"}, 64).window == 32
    assert build({"name": "adakv+ecokv"}, 64).window == 4
    assert build({"name": "adakv+ecokv", "window": 8}, 64).window == 8


def test_half_precision_inputs():
    inputs, extra = case(2)
    kept = select(*(t.bfloat16() for t in inputs), method="adakv+bacon", budget=12, window=4)
    assert sum(len(h) for h in kept[0]) > 0


BAD = [
    ({"method": "snapvk"}, "snapkv"),
    ({"method": "snapkv+beacon"}, "bacon"),
    ({"method": ""}, "method"),
    ({"raduis": 3, "method": "snapkv+bacon"}, "radius"),
    ({"method": "snapkv+bacon", "radius": -1}, "radius"),
    ({"method": "snapkv+bacon", "radius": 1.5}, "radius"),
    ({"method": "snapkv+bacon", "gamma": float("nan")}, "gamma"),
    ({"method": "snapkv+bacon", "variant": "published"}, "released"),
    ({"method": "snapkv+bacon", "variant": "released", "radius": 4}, "odd"),
    ({"method": "snapkv", "kernel": 4}, "odd"),
    ({"method": "pyramidkv+ecokv", "beta": 2}, "capacity="),
    ({"budget": 4}, "larger than the window"),
    ({"budget": 0}, "whole number of at least 1"),
    ({"budget": -5}, "whole number of at least 1"),
    ({"budget": 12.0}, "whole number"),
    ({"budget": True}, "whole number"),
    ({"budget": None}, "whole number of at least 1"),
    ({"window": 0}, "window"),
    ({"window": 2.5}, "window"),
    ({"window": 8, "budget": 20}, "window_queries"),
    ({"method": "sparsemm"}, "calibrate heads"),
    ({"method": "snapkv+h2o"}, "attention_sums"),
    ({"method": "snapkv+lookm"}, "visual_mask"),
    ({"method": "snapkv+mixkv", "weight": "static"}, "mixkv_weight"),
    ({"method": "snapkv+lookm", "visual_mask": torch.ones(3, dtype=torch.bool)}, "visual_mask"),
    ({"method": "sparsemm", "head_scores": torch.ones(2, 3)}, "head_scores"),
    ({"method": "sparsemm", "head_scores": torch.zeros(2, 4)}, "head scores"),
]


@pytest.mark.parametrize("change,message", BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_arguments(change, message):
    inputs, _ = case(0)
    arguments = {"method": "snapkv", "budget": 12, "window": 4, **change}
    with pytest.raises(UserError, match=message) as error:
        select(*inputs, **arguments)
    assert "\n" not in str(error.value)


def test_bad_tensors():
    (keys, values, queries), _ = case(0)
    broken = keys.clone()
    broken[1, 0, 3, 2] = float("nan")
    infinite = values.clone()
    infinite[0, 0, 0, 0] = float("inf")
    for arguments, message in [
        ((broken, values, queries), "keys hold NaN"),
        ((keys, infinite, queries), "values hold NaN"),
        ((keys, values, queries[:, :3]), "multiple"),
        ((keys, values[:, :, :-1], queries), "agree"),
        ((keys, values, queries[..., :-1]), "head_dim"),
        ((keys, values, queries[:1]), "layers"),
        ((keys[:, :, :0], values[:, :, :0], queries), "empty"),
        ((keys[0], values, queries), "dimensions"),
        ((keys.int(), values, queries), "floating"),
    ]:
        with pytest.raises(UserError, match=message):
            select(*arguments, method="snapkv", budget=12, window=4)


def test_build_checks_its_spec():
    for spec, message in [
        ({"name": "snapkv", "windw": 3}, "window"),
        ({"name": "snapkv", "capacity": {"name": "pyramid"}}, "drop one"),
        ({"name": "snapkv", "score": {"name": "baconn"}}, "bacon"),
        ({"name": "snapkv", "capacity": 3}, "capacity"),
        ({"name": "adakv", "capacity": {"flor": 0.3}}, "floor"),
        ({"name": "adakv", "capacity": {"floor": 1.5}}, "floor"),
    ]:
        with pytest.raises(UserError, match=message):
            build(spec, 64)
    assert build({"name": "fullkv", "window": None, "capacity": None, "score": None}, None).full
    assert build({"capacity": {"name": "adakv"}, "score": {"name": "bacon"}}, 64).name == "adakv+bacon"
    assert build({"name": "uniform+window"}, 64).name == "snapkv"


def test_a_short_prompt_keeps_everything():
    inputs, _ = case(0, length=3, window=3)
    kept = select(*inputs, method="snapkv+bacon", budget=64)
    assert all(h.tolist() == [0, 1, 2] for layer in kept for h in layer)


def test_fullkv_selects_all():
    inputs, _ = case(0)
    assert select(*inputs, method="fullkv")[0][0].tolist() == list(range(40))
    assert parse("fullkv") is None


def test_every_option_has_help_and_a_default():
    for kind in ("score", "capacity"):
        for name in names(kind):
            for opt in options(kind, name):
                assert opt.help and opt.type, (name, opt)


def test_public_name_is_lazy():
    import subprocess
    import sys

    code = (
        "import sys, kvbench, kvbench.methods as m; m.method_names(); m.options('score', 'bacon'); "
        "print('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    )
    assert kvbench.select is select


def test_a_method_of_ones_own(tmp_path):
    """One file of at most 25 lines adds a score that runs under every capacity."""
    source = textwrap.dedent('''
        """Keep the candidates nearest to the middle of the prompt."""
        from dataclasses import dataclass

        from kvbench.methods import Score, option, score


        @score("middle_test", line="nearest to a point of the prompt", source="example")
        @dataclass(frozen=True)
        class Middle(Score):
            centre: float = option(0.5, "where, as a share of the prompt", minimum=0, maximum=1)

            def __call__(self, view, selected):
                import torch

                distance = (torch.arange(view.candidates) - self.centre * view.candidates).abs()
                layers, heads, _ = view.observation.shape
                return -distance.expand(layers, heads, -1)
    ''')
    assert len(source.strip().splitlines()) <= 25
    (tmp_path / "middle.py").write_text(source)
    load_plugin(tmp_path / "middle.py")
    (keys, values, queries), extra = case(0)
    kept = select(keys, values, queries, method="snapkv+middle_test", budget=7, window=4, centre=0.0)
    assert kept[0][0].tolist() == [0, 1, 2, 36, 37, 38, 39]
    assert "pyramidkv+middle_test" in method_names()
    with pytest.raises(UserError, match="centre"):
        select(keys, values, queries, method="snapkv+middle_test", budget=7, window=4, centre=2.0)
    with pytest.raises(UserError, match="does not exist"):
        load_plugin(tmp_path / "none.py")


PAPERS = {  # the papers' defaults, which a run without options has; others are the project's decisions
    ("score", "bacon"): {
        "radius": 5,
        "depth": 4,
        "rho": 2.0,
        "gamma": 0.5,
        "epsilon": 1e-8,
        "variant": "paper",
        "residual": "base",
        "heads": "group",
    },
    ("score", "mixkv"): {"weight": "online", "scale": "base"},
    ("score", "ecokv"): {
        "alpha": 0.8,
        "beta": 0.6,
        "tau": None,
        "epsilon": 1e-8,
        "mad_temperature": 1.0,
        "scale": "importance",
        "redundancy": "euclidean",
    },
    ("score", "window"): {"reduce": "mean", "pool": "avg", "kernel": 5},
    ("score", "h2o"): {"reduce": "mean"},
    ("score", "streaming"): {"sinks": 4},
    ("score", "rkv"): {"trade": 0.1},
    ("score", "random"): {"seed": None},
    ("capacity", "adakv"): {"floor": 0.2, "normalise": True, "share": "base"},
    ("capacity", "pyramid"): {"beta": 20, "exact_total": False, "step": "floored", "fallback": False},
    ("capacity", "sparsemm"): {"ratio": 0.1},
    ("refresh", "rcr"): {
        "tau": 0.03,
        "rho": 0.4,
        "eta": 0.05,
        "rank": 8,
        "candidates": None,
        "group": "mean",
    },
    ("refresh", "threshold"): {"tau": 0.03, "rank": 8, "detector": "lowrank"},
    ("refresh", "quest"): {"page": 16, "group": "mean"},
    ("refresh", "arkvale"): {"page": 16, "centre": "mean"},
    ("refresh", "infinigen"): {"rank": None, "query": "previous_layer"},
}


@pytest.mark.parametrize("part", PAPERS, ids="-".join)
def test_defaults_are_the_papers(part):
    defaults = {field.name: field.default for field in fields(lookup(*part))}
    assert {name: defaults[name] for name in PAPERS[part]} == PAPERS[part]
    terms = ("evidence", "coherence", "persistence")
    assert all(defaults.get(name, True) is True for name in terms)
    switches = ("printed_sign", "offload", "branching")
    assert all(defaults.get(name, False) is False for name in switches)


@pytest.mark.parametrize("kind", ["score", "capacity", "refresh"])
def test_a_word_that_is_no_choice_is_refused(kind):
    for name in names(kind):
        for field in fields(lookup(kind, name)):
            if isinstance(field.default, str):
                with pytest.raises(UserError, match=field.name):
                    make(kind, name, {field.name: "no such word"})
                assert getattr(make(kind, name, {field.name: field.default}), field.name) == field.default


def test_head_scores_of_another_model_are_refused():
    inputs, _ = case(0)
    method = build({"name": "sparsemm", "window": 4}, 12)
    for shape in ((2, 3), (4, 2), (8,)):
        observation = Observation(*inputs, head_scores=torch.ones(shape))
        with pytest.raises(UserError, match="calibrate this model"):
            method.capacity(observation.view(4), 8)


WORDED = [
    (kind, name, option.name)
    for kind in ("score", "capacity", "refresh")
    for name in names(kind)
    for option in options(kind, name)
    if isinstance(option.default, str)
]


@pytest.mark.parametrize(("kind", "name", "option"), WORDED)
def test_a_word_that_no_option_knows_is_refused(kind, name, option):
    with pytest.raises(UserError, match=option):
        make(kind, name, {option: "no such word"})


def test_streaming_keeps_four_sinks():
    """StreamingLLM (arXiv:2309.17453), section 3.2: four initial tokens."""
    inputs, _ = case(0)
    for layer in select(*inputs, method="snapkv+streaming", budget=14, window=4):
        for positions in layer:
            assert positions.tolist() == [*range(4), *range(30, 40)]


def test_every_option_is_part_of_a_cell_but_for_two():
    """What an option that is left out of a cell's identity decides, no answer shows."""
    parts = [(kind, name) for kind in ("score", "capacity", "refresh") for name in names(kind)]
    free = {option.name for part in parts for option in options(*part) if option.runtime}
    assert free == {"offload", "branching"}


def test_a_plain_field_of_ones_own_score_is_part_of_a_cell(monkeypatch):
    monkeypatch.setitem(registry._REGISTRY["score"], "plain_test", make_dataclass("P", [("x", int, 3)]))
    (option,) = options("score", "plain_test")
    assert (option.name, option.default, option.runtime) == ("x", 3, False)


def test_a_prefill_captures_what_any_part_of_a_method_needs():
    needs = {"snapkv": set(), "snapkv+h2o": {"attention_sums"}, "adakv+h2o": {"attention_sums"}}
    for name, extras in needs.items():
        assert build({"name": name}, 40).extras == extras
    infinigen = {"name": "snapkv+h2o", "refresh": {"name": "infinigen"}}
    assert build(infinigen, 40).extras == {"attention_sums", "query_basis"}
