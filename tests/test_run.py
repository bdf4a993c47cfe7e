"""A run does what is missing, once, and ends in the same bytes whatever happened on the way."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest
from fakestore import failures

from kvbench import store

GRID = [
    "-m",
    "benchmark=fake_qa,fake_text",
    "method=fullkv,snapkv,adakv+bacon",
    "budget=128,64",
    "method.window=16",
]
ANSWERS = 2 * 5 * 6


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Lines the fakes wrote: one per benchmark load, model load and generated sample."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("FAKE_LOG", str(path))
    monkeypatch.setenv("FAKE_FAIL", "")

    def lines(word: str = "") -> list[str]:
        return [line for line in path.read_text().splitlines() if line.startswith(word)]

    return lines


@pytest.fixture
def kvbench(log, monkeypatch):
    from kvbench.identity import provenance
    from kvbench.running import run

    for name in ("load_model", "load_benchmark", "generate"):
        monkeypatch.setattr(run, name, getattr(fakes, name))
    monkeypatch.setattr(provenance, "git_state", lambda folder: None)
    return fakes.kvbench


def final(folder: Path) -> dict[str, bytes]:
    """Every file that a finished run promises to be the same, and the journals' records without times."""
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.json")}
    files = {name: data for name, data in files.items() if "/provenance/" not in name}  # when and where
    for path in folder.rglob("journal*.jsonl"):
        records = [json.loads(line) for line in path.read_bytes().splitlines()]
        answers = [r for r in records if "text" in r]
        for record in answers:
            del record["seconds"], record["crc"]
        files[str(path.relative_to(folder))] = json.dumps(
            sorted(answers, key=lambda r: (r["cell"], r["index"]))
        ).encode()
    return files


def test_a_run_answers_everything_and_a_second_call_touches_no_model(kvbench, log, tmp_path, capsys):
    where = f"store={tmp_path}/s"
    assert kvbench("run", *GRID, where) == 0
    assert len(log("sample")) == 12 and log("sample")[0] == "sample 0 5", (
        "the five cells share a sample's pass"
    )
    frame = store.load_responses(tmp_path / "s")
    assert len(frame) == ANSWERS
    before, lines = final(tmp_path / "s"), len(log())
    assert kvbench("run", *GRID, where) == 0
    assert len(log()) == lines, "neither model nor benchmark is loaded again"
    assert final(tmp_path / "s") == before
    assert "30 answers, 0 new" in capsys.readouterr().out


def test_files_are_stored_by_what_they_hold(kvbench, tmp_path, monkeypatch, capsys):
    from kvbench.running import run

    built = []
    build = run.build_method
    monkeypatch.setattr(run, "build_method", lambda spec, *rest: built.append(spec) or build(spec, *rest))
    one, moved = tmp_path / "one.json", tmp_path / "moved.json"
    one.write_text("first")
    moved.write_text("first")
    words = ["run", "method=sparsemm", "budget=64", f"store={tmp_path}/s"]
    assert kvbench(*words, f"method.capacity.scores={one}") == 0
    (cell,) = store.cells(tmp_path / "s")
    held = cell.config["method"]["capacity"]["scores"]
    assert held == f"sha256:{hashlib.sha256(b'first').hexdigest()}"
    assert built[0]["capacity"]["scores"] == str(one), "the method itself reads the file"
    assert kvbench(*words, f"method.capacity.scores={moved}") == 0
    assert store.cells(tmp_path / "s") == [cell], "the same file elsewhere is the same cell"
    # A model that reads a file is another version of it when the file changes, not when it moves.
    words = ["run", "method=fullkv", f"store={tmp_path}/m"]
    assert kvbench(*words, f"+model.head_scores={one}") == 0
    assert kvbench(*words, f"+model.head_scores={moved}", "limit=2") == 0
    one.write_text("second")
    capsys.readouterr()
    assert kvbench(*words, f"+model.head_scores={one}") == 2
    assert "2 versions of model" in capsys.readouterr().err


def test_a_raised_limit_and_a_new_method_do_only_what_is_new(kvbench, log, tmp_path):
    where = f"store={tmp_path}/s"
    assert kvbench("run", "method=snapkv", "budget=64", "limit=2", where) == 0
    assert kvbench("run", "method=snapkv", "budget=64", "limit=4", where) == 0
    assert [line.split()[1] for line in log("sample")] == ["0", "1", "2", "3"]
    assert kvbench("run", "-m", "method=snapkv,fullkv", "budget=64", "limit=5", where) == 0
    assert log("sample")[4:] == ["sample 0 1", "sample 1 1", "sample 2 1", "sample 3 1", "sample 4 2"]
    assert kvbench("run", "method=snapkv", "budget=64", "limit=999", where) == 0
    lines = len(log())
    assert kvbench("run", "method=snapkv", "budget=64", "limit=500", where) == 0
    assert len(log()) == lines, "the data set is known to end at 12"
    assert len(store.load_responses(tmp_path / "s")) == 12 + 5


def test_a_changed_config_makes_new_cells(kvbench, tmp_path):
    where = f"store={tmp_path}/s"
    assert kvbench("run", "method=snapkv", "budget=64", where) == 0
    assert kvbench("run", "method=snapkv", "budget=64", "method.window=8", where) == 0
    assert kvbench("run", "method=snapkv", "budget=64", "seed=1", where) == 0
    frame = store.load_responses(tmp_path / "s")
    assert frame.groupby("cell").size().tolist() == [6, 6, 6]


def test_a_seed_reaches_what_is_random_and_nothing_else(kvbench, tmp_path, capsys):
    where = f"store={tmp_path}/s"
    assert kvbench("run", "-m", "method=snapkv+random", "budget=64", "seed=0,1", "limit=1", where) == 0
    assert "reaches nothing" not in capsys.readouterr().err
    drawn = {
        cell.config["seed"]: cell.config["method"]["score"]["seed"] for cell in store.cells(tmp_path / "s")
    }
    assert drawn == {0: 0, 1: 1}
    assert kvbench("run", "method=snapkv", "budget=64", "seed=1", "limit=1", where) == 0
    assert "seed=1 reaches nothing" in capsys.readouterr().err


def test_results_hold_the_realised_entries_and_the_circumstances(kvbench, tmp_path):
    assert kvbench("run", "-m", "method=fullkv,adakv", "budget=64", f"store={tmp_path}/s") == 0
    full, ada = (
        json.loads((c.folder / "results" / f"{c.digest}.json").read_text())
        for c in store.cells(tmp_path / "s")
    )
    assert (full["method"], full["budget"], full["kept"]["mean"]) == ("fullkv", None, 200)
    assert (ada["kept"]["min"], ada["kept"]["mean"], ada["kept"]["max"]) == (62, 64, 66)
    assert ada["kept"]["mean_per_layer_and_head"] == [[64, 64], [65, 63], [66, 62]]
    (circumstances,) = ada["provenance"]
    assert (
        circumstances["device"] == "cpu"
        and circumstances["dtype"] == "float32"
        and circumstances["seed"] == 0
    )
    assert set(circumstances["versions"]) == {"python", "kvbench", "torch", "transformers", "lmms_eval"}
    cell = store.cells(tmp_path / "s")[0]
    history = json.loads((cell.folder / "provenance" / f"{cell.digest}.json").read_text())
    (told,) = history["commands"]
    assert told.startswith("kvbench run") and told.endswith("store=.../s"), "no path of this machine"
    assert history["hosts"] == 1 and history["first_started"] == history["last_started"]
    assert history["circumstances"] == full["provenance"]
    journal = (cell.folder / "journal.jsonl").read_text()
    assert os.uname().nodename not in journal and str(tmp_path) not in journal


def test_responses_are_tidy(kvbench, tmp_path):
    assert kvbench("run", *GRID, f"store={tmp_path}/s") == 0
    frame = store.load_responses(tmp_path / "s", benchmark="fake_qa")
    assert frame["method"].unique().tolist() == ["fullkv", "adakv+bacon", "snapkv"]
    assert frame[frame.method == "fullkv"].budget.isna().all()
    assert frame[frame.method == "snapkv"].budget.unique().tolist() == [128, 64]
    assert frame.groupby("cell")["index"].apply(list).tolist() == [list(range(6))] * 5
    row = frame.iloc[0]
    assert row["text"] == "fullkv None 0 é\n" and row["sample"] == "q0"
    assert len(row["tokens"]) == 4 and row["kept_max"] == 200


def test_a_failing_sample_is_tried_again(kvbench, log, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_FAIL", "3:1")
    assert kvbench("run", "method=snapkv", "budget=64", f"store={tmp_path}/s") == 0
    assert "sample 3, try 1: RuntimeError: no answer to 3" in capsys.readouterr().err
    assert failures(tmp_path / "s") == [] and len(store.load_responses(tmp_path / "s")) == 6


def test_a_sample_that_keeps_failing_is_an_error_not_an_answer(kvbench, log, tmp_path, monkeypatch, capsys):
    where = f"store={tmp_path}/s"
    monkeypatch.setenv("FAKE_FAIL", "3:9")
    assert kvbench("run", "method=snapkv", "budget=64", where) == 1
    assert "5 answers, 5 new, 1 FAILED (first: RuntimeError: no answer to 3)" in capsys.readouterr().out
    (failure,) = failures(tmp_path / "s")
    assert (failure["index"], failure["type"], failure["message"]) == (3, "RuntimeError", "no answer to 3")
    assert store.load_responses(tmp_path / "s")["index"].tolist() == [0, 1, 2, 4, 5]
    assert kvbench("plan", "method=snapkv", "budget=64", where) == 0
    monkeypatch.setenv("FAKE_FAIL", "")
    assert kvbench("run", "method=snapkv", "budget=64", where) == 0
    assert len(log("sample 3")) == 1 and failures(tmp_path / "s") == []


def test_fail_fast_stops_at_the_first_failure(kvbench, log, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_FAIL", "1:9")
    assert kvbench("run", *GRID, "fail_fast=true", "retries=0", f"store={tmp_path}/s") == 1
    assert log("sample") == ["sample 0 5"] and len(log("benchmark")) == 1


def test_what_every_sample_would_meet_ends_the_run(kvbench, tmp_path, monkeypatch, capsys):
    from kvbench.errors import SetupError
    from kvbench.running import run

    def generate(*arguments, **settings):
        raise SetupError("no compiler: set decode.compile=false.")

    monkeypatch.setattr(run, "generate", generate)
    assert kvbench("run", "method=snapkv", "budget=64", f"store={tmp_path}/s") == 2
    assert "no compiler" in capsys.readouterr().err and failures(tmp_path / "s") == []


def test_unreadable_images_are_an_error_of_their_sample(kvbench, tmp_path, monkeypatch):
    class Benchmark(fakes.Benchmark):
        def samples(self, limit):
            samples = super().samples(limit)

            def broken():
                raise OSError("image file is truncated")

            samples[2].images = broken
            return samples

    from kvbench.running import run

    monkeypatch.setattr(run, "load_benchmark", lambda config: Benchmark())
    assert kvbench("run", "method=fullkv", f"store={tmp_path}/s") == 1
    (failure,) = failures(tmp_path / "s")
    assert (failure["index"], failure["type"]) == (2, "OSError")


def test_a_limit_takes_samples_in_the_benchmarks_order(kvbench, log, tmp_path, monkeypatch, capsys):
    """Positions stay those of the data set, a larger limit continues, and a finished run needs no data."""
    monkeypatch.setattr(fakes.Benchmark, "order", [7, 2, 11, 0, 5, 1, 3, 4, 6, 8, 9, 10])
    few = ("run", "method=fullkv", f"store={tmp_path}/s", "limit=2")
    assert kvbench(*few) == 0 and kvbench(*few) == 0
    assert capsys.readouterr().err.splitlines()[0] == "fake / fake_qa: 2 samples about 2 pictures"
    assert log("sample") == ["sample 2 1", "sample 7 1"] and len(log("benchmark")) == 1
    assert kvbench(*few, "limit=4") == 0
    assert log("sample")[2:] == ["sample 0 1", "sample 11 1"]
    assert kvbench(*few, "limit=5", "shards=2") == 0
    assert log("sample")[4:] == ["sample 5 1"]
    assert kvbench("plan", "method=fullkv,snapkv", f"store={tmp_path}/s", "limit=3", "-m") == 0
    assert " 6 │    3 │       3 │" in capsys.readouterr().out


def test_shards_together_equal_one_run(kvbench, tmp_path):
    assert kvbench("run", *GRID, f"store={tmp_path}/whole") == 0
    assert kvbench("run", *GRID, "shards=4", "shard=2,0,3,1", f"store={tmp_path}/split") == 0
    whole, split = (
        store.load_responses(tmp_path / name).drop(columns="seconds") for name in ("whole", "split")
    )
    assert whole.equals(split)
    assert len(list((tmp_path / "split/fake/fake_qa").glob("journal-*of4.jsonl"))) == 4
    assert kvbench("run", "shards=20", "shard=15", f"store={tmp_path}/split", "limit=12") == 2
    assert kvbench("run", *GRID, "shards=3", f"store={tmp_path}/all") == 0, "no shard is every shard"
    results = [
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).glob("*/*/results/*")}
        for name in ("whole", "split", "all")
    ]
    assert len(results[0]) == 10 and results[0] == results[1] == results[2]


def test_a_torn_or_damaged_journal_is_repaired(kvbench, tmp_path, capsys):
    where = f"store={tmp_path}/s"
    assert kvbench("run", "method=snapkv", "budget=64", where) == 0
    before = final(tmp_path / "s")
    journal = tmp_path / "s/fake/fake_qa/journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    assert kvbench("run", "method=snapkv", "budget=64", where) == 0
    assert "cut off a torn last record" in capsys.readouterr().err
    assert final(tmp_path / "s") == before
    middle = whole.index(b'"text"')
    journal.write_bytes(whole[:middle] + b"X" + whole[middle + 1 :])
    assert kvbench("plan", "method=snapkv", "budget=64", where) == 0
    assert "line 3 is damaged" in capsys.readouterr().err
    assert kvbench("run", "method=snapkv", "budget=64", where) == 0
    assert "journal.jsonl: line 3 damaged" in capsys.readouterr().err
    assert final(tmp_path / "s") == before


def test_kill_at_random_moments_then_the_same_bytes(tmp_path):
    """SIGKILL, again and again, until the run gets through; nothing answered is generated twice."""
    environment = {**os.environ, "FAKE_SLEEP": "0.02", "FAKE_LOG": str(tmp_path / "log")}

    def start(name: str) -> subprocess.Popen:
        program = [
            sys.executable,
            fakes.__file__,
            *["run", "-m", "method=fullkv,snapkv,adakv+bacon", "budget=128,64"],
        ]
        program += ["method.window=16", "benchmark=fake_qa,fake_text", "limit=12", f"store={name}"]
        return subprocess.Popen(
            program, env=environment, cwd=tmp_path / "cwd", stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )

    for name in ("calm", "storm"):
        (tmp_path / name).mkdir()
    # The command is part of the provenance, so both runs have to name their store alike.
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "runs").symlink_to(tmp_path / "calm")
    assert start("runs").wait(timeout=120) == 0
    (tmp_path / "cwd" / "runs").unlink()
    (tmp_path / "cwd" / "runs").symlink_to(tmp_path / "storm")
    (tmp_path / "log").write_text("")

    dice = random.Random(7)
    kills = 0
    journals = [tmp_path / "storm/fake" / name / "journal.jsonl" for name in ("fake_qa", "fake_text")]
    for goal in (1, 6, 14, 20):  # answered samples at which this life ends
        process = start("runs")
        while process.poll() is None:
            lines = sum(path.read_bytes().count(b'"text"') for path in journals if path.exists())
            if lines >= goal * 5:
                time.sleep(dice.random() * 0.03)
                process.send_signal(signal.SIGKILL)
                kills += process.wait(timeout=60) < 0
                break
            time.sleep(0.003)
    process = start("runs")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    assert kills >= 3
    assert final(tmp_path / "storm") == final(tmp_path / "calm")
    generated = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("sample")]
    assert 24 <= len(generated) <= 24 + kills, "at most the sample in hand is done again"


def test_two_runs_of_one_job_do_not_write_together(kvbench, tmp_path, capsys):
    folder = tmp_path / "s/fake/fake_qa"
    with store.Writer(folder / "journal.jsonl"):
        assert kvbench("run", "method=fullkv", f"store={tmp_path}/s") == 2
        assert "another kvbench process is writing" in capsys.readouterr().err
        assert (
            kvbench("run", "-m", "benchmark=fake_qa,fake_text", "method=fullkv", f"store={tmp_path}/s") == 2
        )
    assert len(store.load_responses(tmp_path / "s")) == 6, "the other job was done all the same"


def test_compiling_is_asked_of_the_engine_and_continues_the_same_cells(
    kvbench, log, tmp_path, monkeypatch, capsys
):
    from kvbench.running import run

    asked = []

    def generate(*arguments, **settings):
        asked.append(settings.pop("compiled", False))
        return fakes.generate(*arguments, **settings)

    monkeypatch.setattr(run, "generate", generate)
    where = ["method=snapkv", "budget=64", "benchmark=fake_qa", f"store={tmp_path}/s"]
    assert kvbench("run", *where, "limit=2", "decode.compile=true") == 0
    assert kvbench("run", *where, "limit=3") == 0
    assert asked == [True, True, False]
    folder = next((tmp_path / "s").glob("*/*/journal.jsonl")).parent
    (cell,) = store.cells(tmp_path / "s")
    kinds = {facts["versions"].get("decode") for facts in store.load_folder(folder).environment(cell.digest)}
    assert kinds == {None, "compiled"}
    assert kvbench("run", *where, "decode.compile=perhaps") == 2
    assert "decode.compile must be true or false, not 'perhaps'" in capsys.readouterr().err
    assert kvbench("run", *where, "decode.compiled=true") == 2
    assert "decode.compile" in capsys.readouterr().err


def test_a_damaged_list_of_samples_is_named_and_written_again(kvbench, tmp_path, capsys):
    words = ["run", "method=fullkv", "limit=2", f"store={tmp_path}/s"]
    assert kvbench(*words) == 0
    (path,) = (tmp_path / "s").rglob("samples-*.json")
    whole = path.read_bytes()
    for damaged in (b"garbage{", b"[]", b'{"samples": 3}', whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        assert kvbench(*words) == 2
        assert f"{path} is damaged" in capsys.readouterr().err
    path.unlink()
    assert kvbench(*words) == 0 and path.read_bytes() == whole
