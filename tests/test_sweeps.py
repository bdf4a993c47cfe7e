"""Around a run: asking before deleting, plain progress, plans from earlier answers, reading once."""

from __future__ import annotations

import re
import sys
import types

import fakes
import pytest

from kvbench import cli, store
from kvbench.running import progress

GRID = ["-m", "method=fullkv,snapkv", "budget=64", "method.window=16", "benchmark=fake_qa,fake_text"]


@pytest.fixture
def grid(tmp_path, monkeypatch):
    fakes.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    return [*GRID, "store=runs"]


@pytest.fixture
def reads(monkeypatch) -> list:
    """The folders whose journals are read from now on."""
    found = []
    usual = store.responses.load_folder

    def counted(folder, *rest, **more):
        found.append(folder.name)
        return usual(folder, *rest, **more)

    for module in ("kvbench.store", "kvbench.analysis.scoring"):
        __import__(module)
        monkeypatch.setattr(sys.modules[module], "load_folder", counted)
    return found


@pytest.mark.parametrize("answer, deleted", [("y", True), ("yes", True), ("n", False), ("", False)])
def test_clean_asks(grid, monkeypatch, capsys, answer, deleted):
    assert fakes.kvbench("run", *grid) == 0
    asked = []
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    monkeypatch.setattr("kvbench.running.launch.run", lambda *_, **__: 0)
    assert fakes.kvbench("run", *grid, "method=snapkv", "--clean") == (0 if deleted else 1)
    assert asked == ["delete 12 answers of 2 cells? [y/N] "]
    left = len(store.load_responses("runs"))
    assert left == (12 if deleted else 24)


def test_a_short_run_ends_with_all_samples_done(grid, capsys):
    assert fakes.kvbench("run", *grid, "benchmark=fake_qa", "limit=3") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "done" in line]
    assert lines[0] == "fake / fake_qa: 0 of 3 samples done"
    assert re.fullmatch(r"fake / fake_qa: 3 of 3 samples done after \d+ s", lines[-1])


def test_plain_progress_is_told_now_and_then(monkeypatch):
    clock, said = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.Progress("job", 10, 2, said.append) as bar:
        for _ in range(8):
            clock[0] += 20.0
            bar.advance()
    assert said == [
        "job: 2 of 10 samples done",
        "job: 4 of 10 samples done, about 2 min left",
        "job: 6 of 10 samples done, about 80 s left",
        "job: 8 of 10 samples done, about 40 s left",
        "job: 10 of 10 samples done after 3 min",
    ]


def test_one_is_one(grid, capsys):
    assert fakes.kvbench("run", "method=fullkv", "limit=1", "store=runs") == 0
    assert "1 cell x 1 sample, 1 answer, 1 new" in capsys.readouterr().out
    assert cli.main(["status", "runs"]) == 0
    shown = capsys.readouterr().out
    assert "(1 cell)" in shown and "1 answer, 0 missing" in shown


@pytest.mark.parametrize("device, words", [
    ("NVIDIA H200", r"on one worker \(NVIDIA H200\).*: \d+\.\d\d GPU-hours with a GPU a worker"),
    ("cpu", r"on one worker \(cpu\), as earlier answers in this store took$"),
])  # fmt: skip
def test_a_plan_tells_hours_by_device(grid, monkeypatch, capsys, device, words):
    monkeypatch.setattr("kvbench.running.run._placement", lambda adapter: (device, "float32"))
    monkeypatch.setenv("FAKE_SLEEP", "0.01")
    assert fakes.kvbench("run", *grid, "limit=2") == 0
    capsys.readouterr()
    assert fakes.kvbench("plan", *grid, "limit=12") == 0
    assert re.search(words, capsys.readouterr().out, re.MULTILINE)
    assert fakes.kvbench("plan", *grid, "limit=2") == 0
    assert capsys.readouterr().out.endswith("all is answered\n")


def test_journals_are_read_once_whatever_the_shards(grid, reads):
    assert fakes.kvbench("run", *grid) == 0
    reads.clear()
    assert fakes.kvbench("plan", *grid, "shards=4") == 0
    assert sorted(reads) == ["fake_qa", "fake_text"]
    reads.clear()
    assert fakes.kvbench("run", *grid, "shards=4", "launcher=slurm", "launcher.cluster=debug") == 0
    assert sorted(reads) == ["fake_qa", "fake_text"]


def test_scoring_reads_a_journal_once_for_all_its_seeds(grid, reads):
    from kvbench import analysis

    assert fakes.kvbench("run", *grid, "seed=0,1", "benchmark=fake_qa", "limit=2") == 0
    reads.clear()
    analysis.score_store("runs")
    assert reads == ["fake_qa"]


def test_a_large_store_is_scored_by_two_processes_into_the_same_bytes(tmp_path, monkeypatch):
    import fakestore

    from kvbench.analysis import scoring

    pools = []
    usual = scoring.ProcessPoolExecutor
    monkeypatch.setattr(scoring, "ProcessPoolExecutor", lambda *a: pools.append(a[0]) or usual(*a))
    monkeypatch.setattr(scoring.os, "cpu_count", lambda: 8)
    found = []
    for name, large in (("one", scoring.LARGE), ("many", 1)):
        for model in ("a", "b", "c"):
            for method, budget, n in (("fullkv", None, 3), ("snapkv", 64, 3), ("snapkv", 32, 2)):
                words = {index: f"word {index % (budget or 99)} {method}" for index in range(n)}
                benchmark = fakestore.benchmark_cfg("documents_mini")
                method = fakestore.method_cfg(method)
                fakestore.add(tmp_path / name, benchmark, method, budget, words, model=model)
        monkeypatch.setattr(scoring, "LARGE", large)
        warnings = scoring.score_store(tmp_path / name)
        assert len(warnings) == 1 and all(isinstance(w, scoring.Missing) for w in warnings)
        files = sorted((tmp_path / name).rglob("*"))
        made = {str(p.relative_to(tmp_path / name)): p.read_bytes() for p in files if p.is_file()}
        assert sum("scores/" in path for path in made) == 6
        found.append((warnings, made))
    assert found[0] == found[1] and pools == [2]


@pytest.mark.parametrize("command, way_out", [("figures", "--out DIR"), ("report", "--out FILE")])
def test_where_else_to_put_figures_and_report(tmp_path, monkeypatch, capsys, command, way_out):
    from test_table import grid as scored

    monkeypatch.setattr("kvbench.commands.score.warned", lambda store: [])
    monkeypatch.setattr("kvbench.commands.report.warned", lambda store: [])
    scored(tmp_path / "runs")
    (tmp_path / "file").write_text("")
    assert cli.main([command, f"store={tmp_path}/runs", "--out", str(tmp_path / "file" / "here")]) == 2
    assert f"with free space, {way_out};" in capsys.readouterr().err
