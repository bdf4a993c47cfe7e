"""What tracking logs is read back from an offline run; what wandb raises changes nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import fakes
import pytest
from PIL import Image

from kvbench.running import tracking
from kvbench.store import load_responses

RUN = ("run", "-m", "method=fullkv,snapkv", "budget=64", "tracking=wandb")
RESULTS = tracking.results  # before the fixture replaces it
ROWS = [
    {"method": "snapkv", "setting": "", "budget": 64, "metric": "anls", "value": 0.5, "value_low": 0.25}
    | {"value_high": 0.75, "delta": None, "ci_low": None, "ci_high": None, "kept_mean": 64.0}
]


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    fakes.install(monkeypatch.setattr)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))  # artifacts of offline runs
    # The fake benchmark has no metric; rows stand in for those of a scored store.
    monkeypatch.setattr(tracking, "results", lambda job, log: ROWS)


def records(folder):
    """Every record of the offline runs below a folder, per run folder in order of time."""
    import wandb
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    wandb.teardown()  # its background process writes the last records when it ends, as at the program's end
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        source, found = DataStore(), []
        source.open_for_scan(str(path))
        while (data := source.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            found.append(record)
        yield found


def artifact(found, ending):
    """Local files, by their path in it, of the artifact whose name has this ending."""
    logged = (r.request.log_artifact.artifact for r in found if r.HasField("request"))
    held = [r.artifact for r in found if r.HasField("artifact")] + [one for one in logged if one.name]
    (one,) = [one for one in held if one.name.endswith(ending)]
    return {entry.path: Path(entry.local_path) for entry in one.manifest.contents}


def test_an_offline_run_holds_config_metrics_tables_and_answers(tmp_path):
    root = tmp_path / "grid"
    assert fakes.kvbench(*RUN, "limit=3", f"store={root}") == 0
    (found,) = records(root)
    (run,) = [record.run for record in found if record.WhichOneof("record_type") == "run"][:1]
    assert (run.run_group, run.project, run.display_name) == ("grid", "kvbench", "fake / fake_qa")
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert config["limit"] == 3 and {cell["budget"] for cell in config["cells"].values()} == {None, 64}
    history = {}
    for record in found:
        for item in record.history.item:
            history[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    assert history["answers/done"] == 6
    assert (history["snapkv/64/anls/value"], history["snapkv/64/anls/value_low"]) == (0.5, 0.25)
    assert "snapkv/64/anls/delta" not in history
    assert (history["results/nrows"], history["samples/nrows"]) == (1, 3)
    answers = artifact(found, run.run_id)
    assert answers["journal.jsonl"].read_bytes() == next(root.glob("*/*/journal.jsonl")).read_bytes()
    assert {Path(name).stem for name in answers if name.startswith("cells/")} == config["cells"].keys()
    results = json.loads(artifact(found, "results")["results.table.json"].read_text())
    assert [dict(zip(results["columns"], row, strict=True)) for row in results["data"]] == ROWS


def test_a_resumed_job_continues_its_run(tmp_path):
    fakes.kvbench(*RUN, "limit=2", f"store={tmp_path}")
    fakes.kvbench(*RUN, "limit=4", f"store={tmp_path}")
    ids = [next(r.run.run_id for r in found if r.HasField("run")) for found in records(tmp_path)]
    assert len(ids) == 2 and len(set(ids)) == 1
    (known,) = json.loads((tmp_path / "fake" / "fake_qa" / "tracking.json").read_text()).values()
    assert known == ids[0]


class Raising(types.ModuleType):
    """A wandb whose every use raises, after ``good`` uses that do nothing."""

    def __init__(self, good: int = 0) -> None:
        super().__init__("wandb")
        self.good = good

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.good <= 0:
            raise ConnectionError(f"no {name}")
        self.good -= 1
        return lambda *a, **k: self


@pytest.mark.parametrize("good", [0, 2, 3, 4, 6])
def test_whatever_wandb_raises_the_run_is_the_same(tmp_path, monkeypatch, capsys, good):
    monkeypatch.setitem(sys.modules, "wandb", Raising(good))
    assert fakes.kvbench(*RUN, "limit=3", f"store={tmp_path / 'with'}") == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "tracking=wandb is off" in line]
    assert len(said) == 1 and "ConnectionError" in said[0]
    plain = [word for word in RUN if not word.startswith("tracking")]
    assert fakes.kvbench(*plain, "limit=3", f"store={tmp_path / 'without'}") == 0
    frames = [load_responses(tmp_path / name).drop(columns="seconds") for name in ("with", "without")]
    assert len(frames[0]) == 6 and frames[0].equals(frames[1])


@pytest.mark.parametrize("choice", [(), ("tracking=wandb", "tracking.mode=disabled")])
def test_without_tracking_wandb_is_not_touched(tmp_path, monkeypatch, choice):
    monkeypatch.setitem(sys.modules, "wandb", Raising())
    assert fakes.kvbench("run", "method=fullkv", "limit=2", f"store={tmp_path}", *choice) == 0
    assert not list(tmp_path.glob("**/tracking.json"))


@pytest.mark.parametrize(
    ("words", "message"),
    [(["tracking.mode=on"], "online, offline, disabled"), (["tracking.images=-1"], "images")],
)
def test_bad_input(tmp_path, capsys, words, message):
    assert fakes.kvbench("run", "method=fullkv", "tracking=wandb", f"store={tmp_path}", *words) == 2
    assert message in capsys.readouterr().err


def test_traces_are_plotted(tmp_path):
    words = ["-m", "method=fullkv,snapkv", "refresh=none,rcr", "budget=64", "method.window=32", "trace=true"]
    assert fakes.kvbench("run", *words, "tracking=wandb", "limit=2", f"store={tmp_path}") == 0
    (found,) = records(tmp_path)
    keys = {item.key or "/".join(item.nested_key) for record in found for item in record.history.item}
    assert any(key.startswith("traces/drift-fake-fake_qa-snapkv") for key in keys)
    assert any(key.startswith("traces/tau-") for key in keys)


def test_the_dashboard_has_a_bar_for_every_logged_value(tmp_path, monkeypatch, capsys):
    from test_table import grid

    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "scripts")
    import wandb_dashboard

    assert wandb_dashboard.main([str(tmp_path), "--entity", "team", "--show"]) == 2
    assert "kvbench score" in capsys.readouterr().err
    grid(tmp_path)
    board = wandb_dashboard.workspace(tmp_path, "team", "kvbench")
    scores = board.sections[0]
    assert scores.name == "docqa_mini" and [panel.title for panel in scores.panels] == ["docqa_mini: anls"]
    bars = {metric.name if hasattr(metric, "name") else metric for metric in scores.panels[0].metrics}
    assert bars == {"fullkv/anls/value"} | {
        f"snapkv{score}/{budget}/anls/value" for score in ("", "+bacon") for budget in (64, 128)
    }


def test_the_jobs_of_an_experiment_are_a_group(tmp_path):
    for experiment, store, group in (("table1", "a", "table1"), ("", "b", "b")):
        words = [f"experiment={experiment}"] if experiment else []
        fakes.kvbench(*RUN, *words, "limit=1", f"store={tmp_path / store}")
        (found,) = records(tmp_path / store)
        assert next(record.run.run_group for record in found if record.HasField("run")) == group
    fakes.kvbench(*RUN, "experiment=table1", "tracking.group=mine", "limit=1", f"store={tmp_path / 'c'}")
    (found,) = records(tmp_path / "c")
    assert next(record.run.run_group for record in found if record.HasField("run")) == "mine"


def test_the_sample_table_holds_pictures(tmp_path, monkeypatch):
    class Drawn(Image.Image):
        def __eq__(self, other):  # the fake engine looks at what it is given
            return True

    def picture(index):
        image = Image.new("RGB", (6, 4), (40 * index, 0, 0))
        image.__class__ = Drawn
        return [image]

    monkeypatch.setattr(fakes, "picture", picture)
    assert fakes.kvbench(*RUN, "limit=3", "tracking.images=2", f"store={tmp_path}") == 0
    files = artifact(next(records(tmp_path)), "samples")
    table = json.loads(files["samples.table.json"].read_text())
    assert table["columns"] == ["index", "question", "picture", "fullkv", "snapkv 64"]
    assert [row[:2] for row in table["data"]] == [[0, "question 0"], [1, "question 1"]]
    assert [row[3].split()[0] for row in table["data"]] == ["fullkv", "fullkv"]
    assert [(row[2]["_type"], row[2]["width"], row[2]["height"]) for row in table["data"]] == [
        ("image-file", 6, 4)
    ] * 2
    shades = [Image.open(files[row[2]["path"]]).getpixel((0, 0))[0] for row in table["data"]]
    assert shades == [0, 40]


def test_metrics_have_the_interval_of_their_mean(tmp_path, monkeypatch):
    from test_table import grid

    from kvbench.analysis.results import entries, mean

    grid(tmp_path)
    monkeypatch.setattr("kvbench.analysis.scoring.score_store", lambda store, folder: [])
    found = {entry.cell.digest: entry for entry in entries(tmp_path)}
    cells = [entry.cell for entry in found.values() if entry.cell.budget != 128]
    job = types.SimpleNamespace(config={"store": str(tmp_path)}, folder=cells[0].folder, cells=cells)
    logged = RESULTS(job, print)
    assert {row["digest"] for row in logged} == {cell.digest for cell in cells}
    for row in logged:
        expected = mean(found[row["digest"]], row["metric"])
        assert (row["value"], row["value_low"], row["value_high"]) == (
            expected.value,
            expected.low,
            expected.high,
        )
    assert any(row["value_low"] < row["value"] < row["value_high"] for row in logged)


def test_an_unreachable_server_costs_seconds_and_its_run_is_kept(tmp_path):
    """Online, nobody listening: the whole process ends soon and names what to sync later."""
    program = [sys.executable, str(Path(fakes.__file__)), *RUN, "tracking.mode=online", "limit=2"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    elsewhere = {"WANDB_BASE_URL": url, "WANDB_API_KEY": "0" * 40, "WANDB_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(
        [*program, f"store={tmp_path / 'store'}"],
        env={**os.environ, **elsewhere},
        capture_output=True,
        text=True,
        timeout=90,  # wandb alone waits for minutes
    )
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "cannot be reached" in line]
    folder = Path(said.partition("wandb sync ")[2].rstrip("`."))
    assert url in said and list(folder.glob("*.wandb"))
