"""One bad method is one bad method: it is named with its file and line, and the others go on without it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import fakestore
import pytest
import torch
from decoding import methods, prompt, small
from fakestore import failures

import kvbench
from kvbench import store
from kvbench.engine import generate
from kvbench.errors import MethodError, UserError
from kvbench.methods import build, registry
from kvbench.methods.base import Capacity, Score
from kvbench.methods.refresh.base import Cost, Reselect, Triggered

GOOD = [("fullkv", None, None), ("snapkv", 48, 16), ("adakv+ecokv", 24, 4), ("snapkv+bacon", 40, 8)]
SCORES = {  # what a score does -> what is said of it
    lambda view, selected: view.b[:1]: r"shape \(1, 2, 92\), but \(2, 2, 92\) = \[layers, kv_heads, cand",
    lambda view, selected: view.b[..., :-1]: r"shape \(2, 2, 91\), but \(2, 2, 92\)",
    lambda view, selected: view.b.where(view.b > view.b.mean(), torch.nan): r"\d+ NaN or infinite .* of 368",
    lambda view, selected: view.b / 0: r"368 NaN or infinite entries of 368, but all must be finite",
    lambda view, selected: view.b > 0: "dtype bool, but real numbers",
    lambda view, selected: view.b.tolist(): "list, but a tensor of shape",
}
CAPACITIES = {
    lambda view, selected: torch.full((2, 2), 8.0): r"dtype float32, but whole numbers \(int64\)",
    lambda view, selected: torch.full((2, 2), 93): "counts from 93 to 93, but each must lie in 0 to 92",
    lambda view, selected: torch.tensor([[8, 8], [-1, 8]]): "counts from -1 to 8",
    lambda view, selected: torch.full((2, 1), 8): r"shape \(2, 1\), but \(2, 2\) = \[layers, kv_heads\]",
    lambda view, selected: 8: "int, but a tensor",
}


@pytest.fixture
def register(monkeypatch):
    """Make a function a registered part: register(kind, function)."""

    def make(kind, function, base=None, **body):
        registry.names(kind)
        base = base or {"score": Score, "capacity": Capacity}[kind]
        body = body or {"__call__": lambda self, *inputs: function(*inputs)}
        part = dataclass(frozen=True)(type("Own", (base,), {"__module__": __name__, **body}))
        part.name, part.line, part.source = "own", "", ""
        monkeypatch.setitem(registry._REGISTRY[kind], "own", part)

    return make


def inputs(length=100):
    generator = torch.Generator().manual_seed(1)
    keys, values = torch.randn(2, 2, 2, length, 8, generator=generator)
    return keys, values, torch.randn(2, 4, 8, 8, generator=generator)


def own(budget=40):
    return build({"name": "snapkv+own", "window": 8}, budget)


@pytest.mark.parametrize("function, said", SCORES.items(), ids=list(SCORES.values()))
def test_a_score_that_breaks_its_promise_is_named(register, function, said):
    register("score", function)
    with pytest.raises(MethodError, match=said) as caught:
        kvbench.select(*inputs(), method="snapkv+own", budget=24, window=8)
    here = r"method snapkv\+own: score `own` \(tests/test_contract.py:\d+\) returned"
    assert re.match(here, str(caught.value))


@pytest.mark.parametrize("function, said", CAPACITIES.items(), ids=list(CAPACITIES.values()))
def test_a_capacity_that_breaks_its_promise_is_named(register, function, said):
    register("capacity", function)
    with pytest.raises(MethodError, match=said) as caught:
        kvbench.select(*inputs(), method="own", budget=24, window=8)
    assert "method own: capacity `own` (tests/test_contract.py:" in str(caught.value)


def test_what_a_method_raises_is_said_with_the_line_it_came_from(register):
    def careless(view, selected):
        return view.b + torch.zeros(702)

    register("score", careless)
    line = careless.__code__.co_firstlineno + 1
    with pytest.raises(MethodError, match="raised RuntimeError at tests/test_contract.py") as caught:
        kvbench.select(*inputs(), method="snapkv+own", budget=24, window=8)
    assert f"test_contract.py:{line} (The size of tensor" in str(caught.value)


def test_whole_numbers_and_any_integer_type_are_promises_kept(register):
    register("score", lambda view, selected: (view.b * 1e6).int())
    register("capacity", lambda view, selected: torch.full((2, 2), selected, dtype=torch.int32))
    kept = kvbench.select(*inputs(), method="own+own", budget=24, window=8)
    assert [[len(head) for head in layer] for layer in kept] == [[24, 24], [24, 24]]


@pytest.fixture(scope="module")
def model():
    return small({"adapter": "qwen2_vl"}, layers=2)


def answers(model, chosen, **settings):
    found = generate(model, prompt(model), chosen, max_new_tokens=10, return_exceptions=True, **settings)
    return [a if isinstance(a, Exception) else (a.tokens, a.kept) for a in found]


@pytest.mark.parametrize("function", [*SCORES, lambda view, selected: view.nothing])
def test_the_other_methods_of_a_sample_answer_as_without_it(model, register, function):
    register("score", function)
    alone = answers(model, methods(GOOD))
    *others, bad, last = answers(model, [*methods(GOOD), own(), own(30)])
    assert others == alone and all(isinstance(error, MethodError) for error in (bad, last))
    with pytest.raises(MethodError, match="score `own`"):
        generate(model, prompt(model), [*methods(GOOD), own()], max_new_tokens=10)


def test_a_method_that_asks_for_something_else_fails_alone(model):
    """Its own sentence stands."""
    alone = answers(model, methods(GOOD))
    found = answers(model, methods([*GOOD, ("sparsemm", 40, 8)]))
    assert found[:-1] == alone
    assert isinstance(found[-1], UserError) and "sparsemm needs visual-head scores" in str(found[-1])


def broken(base, at, wrong):
    """A policy that takes the first entries until step `at`, then does `wrong`."""
    calls = []

    def propose(self, step):
        calls.append(step.layer)
        size = (*step.query.shape[:2], step.selected)
        first = torch.arange(step.selected).expand(size)
        return wrong(first, step) if len(calls) > 2 * at else first

    body = {"cost": lambda self, *sizes: Cost(), "propose": propose, "__annotations__": {}}
    if base is Triggered:
        body["drift"] = lambda self, step: torch.ones(len(step.query))
    return body


def raises(first, step):
    raise KeyError("no such page")


WRONG = {
    raises: r"refresh `own` raised KeyError at tests/test_contract.py:\d+ \('no such page'\)",
    lambda first, step: first[:, :, 1:]: r"returned shape \(1, 2, 31\), but \(1, 2, 32\)",
    lambda first, step: first.float(): "dtype float32, but whole numbers",
    lambda first, step: first.flip(-1): "not ascending positions from 0 to 141",
    lambda first, step: first + step.count: "not ascending positions from 0 to 141",
    lambda first, step: first - 1: "not ascending positions from 0 to 141",
    lambda first, step: first // 2: "not ascending positions from 0 to 141",
}


@pytest.mark.parametrize("base", [Reselect, Triggered])
@pytest.mark.parametrize("wrong, said", WRONG.items(), ids=list(WRONG.values()))
def test_a_refresh_that_fails_while_decoding_ends_its_own_branch(model, register, base, wrong, said):
    kind = {"name": "snapkv", "window": 8}
    others = [*methods(GOOD), build({**kind, "refresh": "exact"}, 40), build({**kind, "refresh": "rcr"}, 40)]
    alone = answers(model, others, trace=True)
    register("refresh", None, base, **broken(base, 3, wrong))
    bad = build({**kind, "refresh": "own"}, 40)
    for place in (0, 3, len(others)):
        found = answers(model, [*others[:place], bad, *others[place:]], trace=True)
        assert isinstance(error := found.pop(place), MethodError) and re.search(said, str(error))
        assert found == alone


@pytest.mark.parametrize("drift, said", [
    (lambda step: torch.full((len(step.query),), torch.nan), "a drift that is not finite"),
    (lambda step: torch.zeros(7), r"returned shape \(7,\), but \(1,\) = \[branches\]"),
])  # fmt: skip
def test_a_drift_that_is_none_ends_its_own_branch(model, register, drift, said):
    alone = answers(model, methods(GOOD))
    body = broken(Triggered, 99, raises) | {"drift": lambda self, step: drift(step)}
    register("refresh", None, Triggered, **body)
    *others, error = answers(
        model, [*methods(GOOD), build({"name": "snapkv", "window": 8, "refresh": "own"}, 40)]
    )
    assert others == alone and re.search(said, str(error))


def test_a_run_records_the_others_and_does_not_try_again(tmp_path, register, capsys):
    """Through the command: a model of random weights, one method of three bad."""
    from kvbench.cli import main

    calls = []

    def score(view, selected):
        calls.append(1)
        return view.b * torch.nan

    register("score", score)
    words = ["run", "-m", "model=qwen2_vl_7b", "model.weights=random", "benchmark=textqa_mini", "limit=2"]
    words += ["method=fullkv,snapkv,snapkv_own", "budget=64", "benchmark.max_new_tokens=3"]
    words += ["retries=3", f"store={tmp_path}/s", f"hydra.searchpath=[file://{tmp_path}/conf]"]
    (tmp_path / "conf/method").mkdir(parents=True)
    (tmp_path / "conf/method/snapkv_own.yaml").write_text(
        "name: snapkv+own\nwindow: null\ncapacity: {name: uniform}\nscore: {name: own}\n"
    )
    assert main(words) == 1
    assert len(calls) == 2, "once a sample"
    printed = capsys.readouterr()
    assert "snapkv+own: score `own` (tests/test_contract.py:" in printed.err
    frame = store.load_responses(tmp_path / "s")
    assert sorted(frame["method"]) == ["fullkv", "fullkv", "snapkv", "snapkv"]
    (failed, other) = failures(tmp_path / "s")
    assert failed["type"] == other["type"] == "MethodError" and "NaN or infinite" in failed["message"]
    records = [json.loads(line) for line in next((tmp_path / "s").rglob("journal*.jsonl")).open()]
    assert sum("error" in record for record in records) == 2
    assert str(tmp_path) not in failed["message"]


def test_only_what_may_help_is_tried_again(tmp_path, monkeypatch):
    """Of three cells one fails for good and one once: the second try asks the second alone."""
    import fakes

    from kvbench.identity import provenance
    from kvbench.running import run

    asked = []

    def generate(adapter, inputs, methods, benchmark, **settings):
        asked.append([method.name for method in methods])
        found = fakes.generate(adapter, inputs, methods, benchmark, **settings)
        bad = {"adakv": MethodError("it is broken"), "snapkv": RuntimeError("the device was away")}
        if len(asked) > 1:
            del bad["snapkv"]
        return [bad.get(method.name, answer) for method, answer in zip(methods, found, strict=True)]

    monkeypatch.setattr(provenance, "git_state", lambda folder: None)
    for name, fake in (("load_model", fakes.load_model), ("load_benchmark", fakes.load_benchmark)):
        monkeypatch.setattr(run, name, fake)
    monkeypatch.setattr(run, "generate", generate)
    words = ["run", "-m", "method=fullkv,snapkv,adakv", "budget=64", "limit=1", f"store={tmp_path}/s"]
    assert fakes.kvbench(*words) == 1
    assert sorted(asked[0]) == ["adakv", "fullkv", "snapkv"] and asked[1:] == [["snapkv"]]
    frame = store.load_responses(tmp_path / "s")
    assert sorted(frame["method"]) == ["fullkv", "snapkv"]
    assert [failure["message"] for failure in failures(tmp_path / "s")] == ["it is broken"]


def test_a_first_stage_that_fails_is_not_asked_for_a_second():
    from types import SimpleNamespace as Plain

    from kvbench.running import staged

    def ask(inputs, methods, **settings):
        return [
            MethodError("bad") if method == "bad" else Plain(text=f"{inputs} by {method}")
            for method in methods
        ]

    sample = Plain(text="question", then=True, final=lambda reasoning: f"last after {reasoning}")

    class Prompt(str):
        fitted = None

    benchmark = Plain(reasoning_tokens=5, prepare=lambda adapter, text, pictures, new=0: Prompt(text))
    one, bad, two = staged.answers(ask, None, benchmark, sample, [], ["one", "bad", "two"])
    assert isinstance(bad, MethodError)
    assert (one.reasoning, two.reasoning) == ("question by one", "question by two")


def test_the_table_says_why_a_cell_will_not_be_filled(tmp_path):
    from kvbench.analysis.results import entries
    from kvbench.analysis.tables.footer import failed

    cfg = fakestore.benchmark_cfg("docqa_mini")
    cell = fakestore.add(tmp_path, cfg, fakestore.method_cfg("snapkv"), 64, {0: "a"})
    said = {1: {"type": "OSError", "message": "once"}, 2: {"type": "Unanswerable", "message": "no picture."}}
    records = [
        {"cell": cell.digest, "sample": str(i), "index": i, "error": error, "attempt": 1, "permanent": i == 2}
        for i, error in said.items()
    ]
    with store.Writer(cell.folder / "journal.jsonl", 0) as writer:
        writer.append(records)
    (line,) = failed(entries(tmp_path))
    assert line.startswith("snapkv on docqa_mini: sample 2 fails again: no picture; benchmark.unreadable=")
