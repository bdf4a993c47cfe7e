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


def test_every_launcher_key_reaches_slurm(grid, monkeypatch):
    """What submitit is given with all keys of the launcher set; arrays are as long as the cluster takes."""
    import submitit
    import yaml

    from kvbench.paths import conf_dir
    from kvbench.running import slurm

    given, arrays = {}, []

    class Executor:
        def __init__(self, **settings):
            given.update(settings)

        def update_parameters(self, **settings):
            given.update(settings)

        def map_array(self, work, left):
            arrays.append(left)
            return [Job(f"{100 * len(arrays)}_{place}") for place in range(len(left))]

    class Job:
        def __init__(self, name):
            self.job_id = name

    monkeypatch.setattr(submitit, "AutoExecutor", Executor)
    monkeypatch.setattr(slurm, "_largest_array", lambda: 3)
    monkeypatch.setattr(slurm.shutil, "which", lambda name: "/usr/bin/" + name)
    waited = []
    monkeypatch.setattr(slurm, "_wait", lambda array, name, cluster: waited.append(name))
    words = {
        "partition": "gpu", "account": "me", "qos": "high", "gpus": 2, "cpus": 4, "memory": 64, "minutes": 30,
        "notice": 45, "requeues": 7, "parallel": 5, "setup": ["module load cuda"], "python": "/opt/python",
        "prefix": ["apptainer", "exec", "my image.sif"], "extra": "{constraint: h100}", "wait": "true",
        "cluster": "slurm",
    }  # fmt: skip
    file = conf_dir() / "launcher/slurm.yaml"
    assert set(words) == set(yaml.safe_load(file.read_text())["launcher"]), "a key that no test sets"
    lines = [f"launcher.{key}={str(value).replace(chr(39), chr(34))}" for key, value in words.items()]
    fakes.kvbench("run", *grid, "shards=4", "launcher=slurm", *lines)
    assert given["slurm_python"] == "apptainer exec 'my image.sif' /opt/python"
    assert given["slurm_additional_parameters"] == {"requeue": True, "constraint": "h100"}
    assert (given["slurm_partition"], given["slurm_account"], given["slurm_qos"]) == ("gpu", "me", "high")
    assert (given["slurm_gpus_per_node"], given["cpus_per_task"], given["mem_gb"]) == (2, 4, 64)
    assert (given["timeout_min"], given["slurm_signal_delay_s"], given["slurm_max_num_timeout"]) == (
        30,
        45,
        7,
    )
    assert given["slurm_array_parallelism"] == 5 and given["slurm_setup"] == ["module load cuda"]
    assert [len(array) for array in arrays] == [3, 3, 2] and waited == ["100,200,300"]


def test_the_largest_array_is_read_from_slurm(monkeypatch):
    from kvbench.running import slurm

    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    assert slurm._largest_array() is None
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)

    class Told:
        stdout = "MaxArraySize            = 1001\nMaxJobCount = 10000\n"

    monkeypatch.setattr(slurm.subprocess, "run", lambda *_, **__: Told)
    assert slurm._largest_array() == 1000
