"""Measurements at tiny sizes: what they count is right; how fast it is, is not tested."""

import json
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kvbench import cli
from kvbench.bench import efficiency, grid, overhead, report, score, select, workload
from kvbench.benchmarks import captions as captions_module
from kvbench.commands.bench import BENCHES
from kvbench.models import load


@pytest.fixture(scope="module")
def toy():
    cfg = {"name": "toy", "adapter": "qwen2_vl", "weights": "random", "size": "toy", "device": "cpu"}
    model = load(cfg)
    model._head_scores = torch.rand(model.layers, model.query_heads).double()
    workload.endless(model)
    return model


@pytest.fixture
def peaks(monkeypatch):
    """Peak memory without the kernel's help."""
    monkeypatch.setattr(workload.Peak, "reset", lambda self: None)
    monkeypatch.setattr(workload.Peak, "bytes", lambda self: 3 * 2**30)


def test_the_grid_has_49_cells_and_ecokv_its_own_window():
    methods = workload.methods(("fullkv", *workload.METHODS), (128, 64, 32), 16)
    assert len(methods) == 49 and methods[0].full
    assert {m.window for m in methods if "ecokv" in m.name} == {4}
    assert {m.window for m in methods[1:] if "ecokv" not in m.name} == {16}
    assert len({(m.name, m.budget) for m in methods}) == 49


def test_grid_compares_the_tokens_of_every_cell(toy, peaks, monkeypatch):
    from kvbench import engine

    methods = workload.methods(("fullkv", "snapkv", "adakv+bacon"), (24, 16), 8)
    prompt = workload.random_prompt(toy, 60)
    (row,) = grid.rows(toy, [prompt], methods, new_tokens=5)
    assert (row["tokens"], row["cells"], row["compared"], row["differ"]) == (60, 5, 5, 0)
    assert row["peak_ratio"] == 1 and row["ratio"] > 0
    generate = engine.generate

    def wrong_alone(model, inputs, chosen, **settings):
        answers = generate(model, inputs, chosen, **settings)
        if len(chosen) == 1 and chosen[0].budget == 16:
            answers[0].tokens[-1] += 1
        return answers

    monkeypatch.setattr(engine, "generate", wrong_alone)
    (row,) = grid.rows(toy, [prompt], methods, new_tokens=5)
    assert row["differ"] == 2


def test_single_cells_are_spread_over_the_grid():
    assert grid._spread(49, None) == list(range(49))
    assert grid._spread(49, 4) == [0, 12, 24, 36]
    assert grid._spread(3, 9) == [0, 1, 2]


def test_select_times_every_method_and_all_together(toy, monkeypatch):
    monkeypatch.setattr(workload, "text_prompt", workload.random_prompt)
    found = select.rows(toy, 70, budgets=(24,), window=8, repeats=1)
    assert [row["method"] for row in found] == [*workload.METHODS, "together"]
    assert found[-1]["cells"] == 16 and all(row["select_ms"] > 0 for row in found)


def test_efficiency_counts_the_entries_that_are_kept(toy, peaks):
    methods = workload.methods(("fullkv", "snapkv"), (16,), 8)
    full, snap = efficiency.rows(toy, [workload.random_prompt(toy, 64)], methods, new_tokens=3, repeats=2)
    entry = 2 * toy.head_dim * 4  # a key and a value in float32
    assert full["cache_GiB"] * 2**30 == pytest.approx(toy.layers * toy.kv_heads * 64 * entry)
    assert snap["cache_GiB"] * 2**30 == pytest.approx(toy.layers * toy.kv_heads * 16 * entry)
    assert (full["runs"], full["new_tokens"], full["peak_GiB"]) == (2, 3, 3)


def test_every_table_names_known_methods_and_options():
    for table in efficiency.TABLES.values():
        assert workload.methods(table["methods"], [table["budget"]], 32)[0].full


def test_a_table_of_drawn_questions_asks_those_of_the_experiment(tmp_path, monkeypatch):
    """ECOKV's table 10: 100 drawn at random, as conf/experiment/ecokv_table10.yaml has them."""
    from kvbench import benchmarks
    from kvbench.planning import plan

    asked = []
    monkeypatch.setattr(benchmarks, "load", lambda cfg: asked.append(cfg))
    monkeypatch.setattr(workload, "adapter", lambda name, settings: None)
    with pytest.raises(AttributeError):
        efficiency.main(["--table", "ecokv_table10"])
    (cfg,) = asked
    assert cfg["subset"] == plan.jobs(["experiment=ecokv_table10"])[0].config["benchmark"]["subset"]


def test_peak_memory_sees_an_allocation():
    """In a process of its own: what another test's memory gives back meanwhile would hide it."""
    code = """
import torch
from kvbench.bench import workload
peak = workload.Peak(torch.device("cpu"))
peak.reset()
before = peak.bytes()
block = torch.ones(60_000_000)
del block
assert peak.bytes() - before > 150_000_000
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_overhead_is_what_is_not_the_forward_pass(tmp_path, monkeypatch):
    import time

    import fakes

    from kvbench.running import run

    class Network(torch.nn.Module):
        def forward(self):
            time.sleep(0.03)

    model = fakes.Adapter()
    model.model, model.device = Network(), torch.device("cpu")

    def generate(adapter, inputs, methods, benchmark, trace=False, seconds=None, **_):
        adapter.model()
        time.sleep(0.03)
        seconds |= {"prefill": 0.04, "select": 0.01, "decode": 0.01}
        return fakes.generate(adapter, inputs, methods, benchmark, trace)

    monkeypatch.setattr(run, "load_model", lambda _: model)
    monkeypatch.setattr(run, "load_benchmark", fakes.load_benchmark)
    monkeypatch.setattr(run, "generate", generate)
    words = ["method=fullkv", f"hydra.searchpath=[file://{fakes.CONF}]"]
    (row,) = overhead.rows("fake", "fake_qa", 3, {"one": words})
    assert row["answers"] == 3
    assert 0.09 <= row["model_s"] <= row["total_s"] - 0.09
    assert row["select_percent"] == pytest.approx(100 * 0.03 / row["model_s"])
    assert row["engine_percent"] == pytest.approx(100 * (0.15 - row["model_s"]) / row["model_s"])
    assert row["harness_percent"] == pytest.approx(100 * (row["total_s"] - 0.18) / row["model_s"])
    assert row["harness_percent"] >= 0
    assert "prepare" not in vars(model)


def test_score_counts_unequal_figures():
    class Task:
        caption_metrics = ["m_CIDEr"]

        def task_scores(self, cells, indices):
            return {name: SimpleNamespace(metrics={"m_CIDEr": 1.0}) for name in cells}

        def own_figures(self, answers, metrics):
            return {"m_CIDEr": answers[0]}

    given = {"a": {0: 1.0}, "b": {0: 1.5}, "c": {0: 9.0}}
    score.captions, keep = (lambda *_: given), score.captions
    try:
        (row,) = score.rows(Task(), 3, 1, own=2)
    finally:
        score.captions = keep
    assert (row["own_cells"], row["unequal"]) == (2, 1)


def test_bootstrap_row_names_its_sizes():
    _, row = score.interval_rows(3, 20, 50)
    assert (row["cells"], row["samples"], row["resamples"]) == (3, 20, 50)


def test_cider_equals_pycocoevalcap_cell_by_cell(monkeypatch):
    """Sharing the references' part between cells must not move a digit."""
    from pycocoevalcap.cider.cider import Cider

    monkeypatch.setattr(captions_module, "tokenize", lambda blocks: [list(block) for block in blocks])
    references = [["a red car on a road", "the red car"], ["two dogs run", "dogs", "two dogs"], ["a car"]]
    cells = [
        ["a red car", "two dogs run fast", "a car"],
        ["", "dogs dogs dogs", "unknown words here"],
        ["a red car on a road", "two dogs", "the red car car"],
    ]
    draw = random.Random(0)
    words = ["a", "red", "car", "on", "the", "road", "two", "dogs", "run", "fast", "past", "it"]
    for _ in range(30):
        line = lambda: " ".join(draw.choices(words, k=draw.randint(1, 14)))  # noqa: E731
        references.append([line() for _ in range(draw.randint(1, 5))])
        for cell in cells:
            cell.append(line())
    found = captions_module.cider(references, cells)
    for cell, values in zip(cells, found, strict=True):
        own = Cider().compute_score(dict(enumerate(references)), {i: [c] for i, c in enumerate(cell)})
        assert values == own[1].tolist()
    assert found[1][0] == 0 and found[0][0] > 0


def test_reports_are_json_with_settings_and_machine(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    monkeypatch.setattr(score, "interval_rows", lambda *sizes: [{"sizes": list(sizes)}])
    path = report.save("x", [{"a": 1.5}], {"length": 3})
    stored = json.loads(path.read_text())
    assert (
        stored["rows"] == [{"a": 1.5}] and stored["settings"] == {"length": 3} and stored["machine"]["cores"]
    )


@pytest.mark.parametrize("name", BENCHES)
def test_every_measurement_has_help_and_refuses_unknown_options(name, capsys):
    assert cli.main(["bench", name, "--help"]) == 0
    assert f"kvbench bench {name}" in capsys.readouterr().out
    assert cli.main(["bench", name, "--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["grid", "--model", "smolm2"], "smollm2"),
        (["grid", "--samples", "0"], "--samples"),
        (["efficiency", "--table", "ecokv_table6"], "ecokv_table5"),
        (["efficiency", "--set", "weights"], "KEY=VALUE"),
        (["score", "--cells", "0"], "at least 1"),
        (["overhead", "--limit", "0"], "--limit"),
    ],
)
def test_mistakes_are_one_sentence(words, said, capsys):
    assert cli.main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
