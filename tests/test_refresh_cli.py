"""Re-selection from the command line: its cells, their names and mistakes, and the traces they leave."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time

import fakes
import numpy
import pytest

from kvbench import store
from kvbench.analysis.results import settings
from kvbench.errors import UserError
from kvbench.planning import compose, config, plan
from kvbench.store.trace import COLUMNS


@pytest.fixture(autouse=True, scope="module")
def one_hydra():
    """Start Hydra once for all tests of this file."""
    with compose.session():
        yield


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Indices of the samples that the fakes generated, in order."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("FAKE_LOG", str(path))
    return lambda: [int(line.split()[1]) for line in path.read_text().splitlines() if "sample" in line]


@pytest.fixture
def kvbench(log, monkeypatch):
    from kvbench.identity import provenance
    from kvbench.running import run

    for name in ("load_model", "load_benchmark", "generate"):
        monkeypatch.setattr(run, name, getattr(fakes, name))
    monkeypatch.setattr(provenance, "git_state", lambda folder: None)
    return fakes.kvbench


def cells(*overrides: str) -> list[store.Cell]:
    (job,) = plan.jobs(fakes.command("run", "method.window=32", *overrides)[1:], multirun=True)
    return job.cells


def refreshes(*overrides: str) -> list[dict]:
    return [cell.config["method"].get("refresh") for cell in cells("budget=64", *overrides)]


def test_no_refresh_is_spelt_as_before_there_was_one():
    names = ["method=fullkv,snapkv,snapkv+bacon", "budget=64"]
    plain = cells(*names)
    assert [c.digest for c in cells(*names, "refresh=none")] == [c.digest for c in plain]
    assert all("refresh" not in cell.config["method"] and "refresh" not in cell.config for cell in plain)
    # Digests of stores that were written before a method could have a refresh; the fakes named no data then,
    # and a cell not the version of its method's source.
    old = copy.deepcopy([cell.config for cell in plain])
    for one in old:
        one.pop("code", None)
        del one["benchmark"]["data"], one["model"]["weights"]
    for option in ("residual", "heads"):  # BACON has had them since
        del old[2]["method"]["score"][option]
    old = [config.digest(one) for one in old]
    assert old == ["6ffb074fafdaa8bc", "f4f21d6fe487a4a7", "d2a092364cf29e8b"]


def test_a_refresh_is_an_axis_and_fullkv_has_one_cell():
    found = cells("method=fullkv,snapkv,snapkv+bacon", "budget=64", "refresh=none,rcr,quest")
    assert [cell.method for cell in found] == [
        "fullkv",
        *["snapkv", "snapkv refresh=rcr", "snapkv refresh=quest"],
        *["snapkv+bacon", "snapkv+bacon refresh=rcr", "snapkv+bacon refresh=quest"],
    ]
    assert [cell.refresh for cell in found] == ["none", *["none", "rcr", "quest"] * 2]
    assert {cell.first for cell in found[4:]} == {"snapkv+bacon"}
    assert len({cell.digest for cell in found}) == 7


def test_options_apply_to_the_policies_that_have_them():
    found = refreshes("method=snapkv", "refresh=none,threshold,rcr,quest", "refresh.tau=0.02,0.1")
    taus = [(refresh or {}).get("tau") for refresh in found]
    assert taus == [None, 0.02, 0.1, 0.02, 0.1, None]
    found = refreshes(
        "method=snapkv", "refresh=threshold,rcr", "refresh.threshold.tau=0.02,0.1", "refresh.tau=0.5"
    )
    assert [(r["name"], r["tau"]) for r in found] == [("threshold", 0.02), ("threshold", 0.1), ("rcr", 0.5)]
    (rcr,) = refreshes("method=snapkv", "refresh=rcr", "refresh.rho=0.3")
    assert rcr["rho"] == 0.3 and rcr["eta"] == 0.05, "options that are not given are part of the cell"


def test_every_identity_option_changes_the_digest_and_runtime_ones_do_not():
    base = ["method=snapkv", "budget=64", "refresh=rcr"]
    (cell,) = cells(*base)
    changes = ["refresh.tau=0.1", "refresh.rho=0.5", "refresh.eta=0.1", "refresh.rank=4", "refresh.group=max"]
    found = {cells(*base, change)[0].digest for change in [*changes, "refresh.candidates=40"]}
    assert len(found) == 6 and cell.digest not in found
    assert [c.digest for c in cells(*base, "trace=true", "offload=true")] == [cell.digest]
    assert not {"offload", "branching"} & set(cell.config["method"]["refresh"])


def test_labels_tell_policies_and_their_varied_options_apart():
    found = cells(
        "method=fullkv,snapkv", "budget=64", "refresh=none,threshold,quest", "refresh.threshold.tau=0.02,0.1"
    )
    labels = [f"{cell.method} {settings(found)[cell.digest]}".strip() for cell in found]
    threshold = [f"snapkv refresh=threshold tau={tau}" for tau in (0.02, 0.1)]
    assert labels == ["fullkv", "snapkv", *threshold, "snapkv refresh=quest"]


@pytest.mark.parametrize("overrides, words", [
    (["refresh=rrc"], "unknown refresh 'rrc': did you mean rcr"),
    (["refresh=rcr", "refresh.rhoo=0.3"], "unknown key 'refresh.rhoo': did you mean refresh.rho"),
    (["refresh=quest", "refresh.rho=0.3"], "unknown key 'refresh.rho'"),
    (["refresh=rcr", "refresh.threshold.tau=0.1"], "unknown key 'refresh.threshold.tau'"),
    (["refresh=rcr", "refresh.rho=1.5"], "option `rho` of refresh `rcr` must satisfy 0 <= x <= 1, not 1.5"),
    (["refresh=rcr", "refresh.rho=-0.1"], "must satisfy 0 <= x <= 1"),
    (["refresh=rcr", "refresh.rank=0"], "`rank` of refresh `rcr` must satisfy 1 <= x"),
    (["refresh=rcr", "refresh.selected=40"], "40 selected and 32 window entries, more than the budget 64"),
    (["refresh=rcr", "refresh.selected=16"], "leaves 16 of the budget 64 unused"),
    (["refresh=rcr", "refresh.candidates=8"], "cannot select 32 entries out of 8 candidates"),
    (["refresh=quest", "refresh.page=12"], "page of 12 does not divide the 32 selected"),
    (["refresh=arkvale", "refresh.page=64"], "page of 64 does not divide the 32 selected"),
    (["refresh=rcr", "method=pyramidkv"], "rewrites equally many entries in every head"),
    (["refresh=rcr", "refresh.offload=true"], "write offload=VALUE"),
    (["refresh.tau=0.1", "method=fullkv"], "keeps everything"),
    (["refresh=rcr", "trace=perhaps"], "trace must be true or false"),
])  # fmt: skip
def test_mistakes_are_one_sentence(overrides, words):
    with pytest.raises(UserError) as caught:
        cells("method=snapkv", "budget=64", *overrides)
    assert re.search(re.escape(words), str(caught.value)) and "\n" not in str(caught.value)


def test_a_rank_above_the_heads_stops_the_run_before_the_first_sample(kvbench, log, tmp_path, capsys):
    words = ["method=snapkv", "budget=64", "method.window=32", "refresh=rcr", "refresh.rank=65"]
    assert kvbench("run", *words, f"store={tmp_path}/s") == 2
    assert "above the model's head dimension 64" in capsys.readouterr().err and log() == []


def test_list_names_every_policy_with_its_options(capsys):
    from kvbench import cli
    from kvbench.methods import registry

    assert cli.main(["list", "refresh"]) == 0
    shown = capsys.readouterr().out
    assert all(f"refresh {name}: " in shown for name in registry.names("refresh"))
    assert "refresh.rho=0.4" in shown and "offload=" not in shown


GRID = ["-m", "method=fullkv,snapkv", "refresh=none,rcr", "budget=64", "method.window=32"]


def test_traces_lie_beside_the_answers(kvbench, log, tmp_path):
    assert kvbench("run", *GRID, f"store={tmp_path}/s", "trace=true", "limit=2") == 0
    frame = store.load_traces(tmp_path / "s", "fake", "fake_qa")
    assert tuple(frame.columns) == COLUMNS
    order = [cell.digest for cell in store.cells(tmp_path / "s")]
    assert len(order) == 3 and frame.cell.unique().tolist() == order
    part = frame[(frame.cell == order[2]) & (frame["sample"] == 1)]
    assert part.step.tolist() == [0] * 3 + [1] * 3 + [2] * 3 and part.layer.tolist() == [0, 1, 2] * 3
    assert part.drift.tolist() == (1 + numpy.arange(9)).tolist() and set(part.held) == {2}
    assert len(frame) == 3 * 2 * 9
    assert store.load_traces(tmp_path / "s", benchmark="other").empty


def test_without_trace_nothing_is_recorded_and_trace_adds_only_what_lacks(kvbench, log, tmp_path):
    where = f"store={tmp_path}/s"
    assert kvbench("run", *GRID, where, "limit=3") == 0
    assert not list((tmp_path / "s").rglob("*.parquet")) and store.load_traces(tmp_path / "s").empty
    journal = tmp_path / "s/fake/fake_qa/journal.jsonl"
    before = [line for line in journal.read_text().splitlines() if '"text"' in line]
    assert kvbench("run", *GRID, where, "limit=2", "trace=true") == 0
    assert log() == [0, 1, 2, 0, 1]
    assert [line for line in journal.read_text().splitlines() if '"text"' in line] == before
    assert store.load_traces(tmp_path / "s")["sample"].unique().tolist() == [0, 1]
    assert kvbench("run", *GRID, where, "limit=2", "trace=true") == 0
    assert kvbench("run", *GRID, where, "limit=3") == 0
    assert log() == [0, 1, 2, 0, 1], "a finished command computes nothing, with and without traces"


def test_a_trace_of_another_answer_is_refused(kvbench, tmp_path, monkeypatch, capsys):
    from kvbench.running import run

    words = [*GRID, f"store={tmp_path}/s", "limit=1"]
    assert kvbench("run", *words) == 0
    before = store.load_responses(tmp_path / "s").drop(columns="seconds")

    def otherwise(*arguments, **settings):
        answers = fakes.generate(*arguments, **settings)
        answers[0].tokens = [*answers[0].tokens[:-1], -1]
        return answers

    monkeypatch.setattr(run, "generate", otherwise)
    assert kvbench("run", *words, "trace=true") == 1
    assert "no longer gives the stored answer to sample 0" in capsys.readouterr().err
    assert store.load_responses(tmp_path / "s").drop(columns="seconds").equals(before)


def test_a_trace_without_its_answer_counts_for_nothing(kvbench, log, tmp_path):
    words = [*GRID, f"store={tmp_path}/s", "limit=2", "trace=true"]
    assert kvbench("run", *words) == 0
    journal = tmp_path / "s/fake/fake_qa/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"index":1' not in line))
    assert store.load_traces(tmp_path / "s")["sample"].unique().tolist() == [0]
    assert kvbench("run", *words) == 0
    assert log() == [0, 1, 1] and len(store.load_traces(tmp_path / "s")) == 3 * 2 * 9


def test_killed_while_tracing_then_the_same_traces(tmp_path):
    """SIGKILL in the middle; the same command ends with every answer and every trace, once."""
    environment = {**os.environ, "FAKE_SLEEP": "0.05", "FAKE_LOG": str(tmp_path / "log")}
    program = [sys.executable, fakes.__file__, "run", *GRID, "limit=12", "trace=true", f"store={tmp_path}/s"]
    process = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    traces = tmp_path / "s/fake/fake_qa/traces"
    while process.poll() is None and len(list(traces.glob("*/*.parquet"))) < 8:
        time.sleep(0.003)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) < 0
    half = next(traces.glob("*")) / "9.parquet.abc.tmp"  # as a kill inside a write leaves it
    half.write_text("")
    done = subprocess.run(program, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    frame = store.load_traces(tmp_path / "s")
    assert len(frame) == 3 * 12 * 9 and frame.groupby(["cell", "sample"], observed=True).ngroups == 36
    assert not [path for path in traces.glob("*/*") if path.suffix != ".parquet"], "no half-written file"
    generated = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("sample")]
    assert 12 <= len(generated) <= 13, "at most the sample in hand is done again"


def test_offload_reaches_the_policy_and_leaves_the_cell(kvbench, tmp_path, monkeypatch):
    from kvbench.running import run

    seen = []

    def generate(adapter, inputs, methods, *rest, **settings):
        seen.extend(method.refresh.offload for method in methods if method.refresh)
        return fakes.generate(adapter, inputs, methods, *rest, **settings)

    monkeypatch.setattr(run, "generate", generate)
    for name, offload in (("a", "true"), ("b", "false")):
        assert kvbench("run", *GRID, f"store={tmp_path}/{name}", f"offload={offload}", "limit=1") == 0
    assert seen == [True, False]
    configs = [[json.dumps(cell.config) for cell in store.cells(tmp_path / name)] for name in "ab"]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("name, cells, jobs", [
    ("rcr_detailcaps", 13, 1), ("rcr_textcaps", 13, 1), ("rcr_oracle_vqa", 5, 2),
    ("rcr_threshold_exact", 2, 1),
    ("rcr_threshold_sweep", 13, 1), ("rcr_cost", 14, 1),
])  # fmt: skip
def test_experiments_compose_at_the_papers_layout(name, cells, jobs):
    found = plan.jobs([f"experiment={name}"])
    assert [len(job.cells) for job in found] == [cells] * jobs
    for job in found:
        assert job.config["trace"] and job.config["model"]["name"] == "embedded"
        compressed = [cell for cell in job.cells if cell.budget is not None]
        assert {(cell.budget, cell.config["method"]["window"]) for cell in compressed} == {(64, 32)}


@pytest.mark.parametrize("option", ["rank=4", "candidates=256"])
def test_the_exact_detector_refuses_the_other_ones_options(option):
    words = ["benchmark=describe_mini", "method=snapkv+bacon", "budget=64", "method.window=32"]
    words += ["refresh=threshold", f"refresh.{option}"]
    assert plan.jobs(words)[0].cells[0].options[f"refresh.{option.partition('=')[0]}"]
    with pytest.raises(UserError, match="do nothing with refresh.detector=exact"):
        plan.jobs([*words, "refresh.detector=exact"])
