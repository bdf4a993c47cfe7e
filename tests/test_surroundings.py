"""What is missing, changed or broken around a run is one sentence, and said before any model is loaded."""

from __future__ import annotations

import json

import datasets
import minidata
import pytest

from kvbench import benchmarks, models
from kvbench.cli import main
from kvbench.errors import UserError
from kvbench.identity import revisions
from kvbench.planning import plan
from kvbench.planning.parsing import resolved
from kvbench.setup import doctor, fetch


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache of the hub, offline."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def snapshot(hub, name, revision="c0ffee", branch="main"):
    folder = hub / name / "snapshots" / revision
    folder.mkdir(parents=True)
    (hub / name / "refs").mkdir()
    (hub / name / "refs" / branch).write_text(revision)
    (folder / "config.json").write_text("{}")
    return folder


def checkpoint(folder, value=1, layers=2):
    """A folder that looks like a checkpoint, its weights larger than what is sampled of them."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "layers": layers}))
    (folder / "model.safetensors").write_bytes(bytes([value]) * (1 << 20))
    return folder


def digest(*words):
    (job,) = plan.jobs(["method=fullkv", *words])
    return job.cells[0].digest


def test_a_local_checkpoint_counts_by_what_it_holds(tmp_path):
    folder = checkpoint(tmp_path / "a")
    words = ["model=qwen2_vl_7b", "benchmark=docqa_mini", f"model.weights={folder}"]
    first = digest(*words)
    assert digest(*words) == first
    found = {first, digest(*words[:2])}
    found.add(digest(*words) if checkpoint(folder, value=2) else None)
    found.add(digest(*words) if checkpoint(folder, layers=3) else None)
    assert len(found) == 4
    checkpoint(folder)
    assert digest(*words) == first == digest(*words, "model.revision=v2")
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"\1")
    assert digest(*words) != first


def test_a_change_anywhere_in_large_weights_is_mostly_seen(tmp_path):
    folder = checkpoint(tmp_path / "a")
    before = revisions.checkpoint(str(folder))
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[len(data) // 3 :] = bytes([7]) * (len(data) - len(data) // 3)  # not at the ends alone
    data[-5000:] = bytes([1]) * 5000
    (folder / "model.safetensors").write_bytes(data)
    assert revisions.checkpoint(str(folder)) != before
    assert revisions.checkpoint("Qwen/Qwen2-VL-7B-Instruct") is None


def test_a_data_folder_counts_by_what_it_holds(tmp_path):
    folder = minidata.write(tmp_path, "docqa_mini")
    words = ["benchmark=docqa_mini", f"benchmark.data={folder}"]
    first = digest(*words)
    assert digest(*words) == first != digest(words[0])
    (file,) = folder.glob("*.parquet")
    datasets.Dataset.from_parquet(str(file)).select([1, 0, 2, 3]).to_parquet(str(file))
    assert digest(*words) != first


@pytest.mark.parametrize("model", ["embedded", "qwen2_vl_7b", "smollm2"])
def test_a_folder_of_weights_that_is_not_there(model, capsys):
    words = [f"model={model}", "model.weights=/nope", "benchmark=documents_mini"]
    assert main(["plan", *words]) == 0
    assert "/nope: set model.weights" in capsys.readouterr().out
    (cfg,) = resolved(words[:2])["model"]
    with pytest.raises(UserError, match="/nope.*set model.weights") as caught:
        models.load(cfg)
    assert "make embedded" not in str(caught.value) and "hf download" not in str(caught.value)


def test_a_checkpoint_that_cannot_be_reached_is_asked_for_once(monkeypatch):
    import huggingface_hub

    asked = []

    def unreachable(url, **_):
        asked.append(url)
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("tries again"))
    (cfg,) = resolved(["model=qwen2_vl_7b", "model.weights=no/such"])["model"]
    with pytest.raises(UserError, match="cannot find the checkpoint no/such.*hf download no/such"):
        models.load(cfg)
    assert len(asked) == 1 and "no/such/resolve/main/config.json" in asked[0]


def test_doctor_and_plan_know_revisions(hub, capsys):
    snapshot(hub, "models--Qwen--Qwen2-VL-7B-Instruct")
    snapshot(hub, "datasets--lmms-lab-encoder--DocVQA")
    words = ["model=qwen2_vl_7b", "benchmark=docvqa"]
    assert main(["doctor", *words]) == 0
    assert main(["doctor", *words, "model.revision=v9", "benchmark.revision=abc"]) == 1
    said = capsys.readouterr().out
    assert "revision v9 of Qwen/Qwen2-VL-7B-Instruct is not here, main is" in said
    assert "revision abc of lmms-lab-encoder/DocVQA is not here, main is" in said
    assert main(["plan", *words, "benchmark.revision=abc"]) == 0
    said = capsys.readouterr().out
    assert "benchmark docvqa: revision abc" in said and "model qwen2_vl_7b" not in said
    assert main(["doctor", *words, "model.revision=c0ffee", "benchmark.revision=c0ffee"]) == 0
    (cfg,) = resolved(["benchmark=docvqa", "benchmark.revision=abc"])["benchmark"]
    with pytest.raises(UserError, match="revision abc of lmms-lab-encoder/DocVQA.*main, c0ffee"):
        benchmarks.load(cfg)


def test_plan_says_what_unfinished_jobs_lack(hub, capsys):
    assert main(["plan", "model=qwen2_vl_7b", "benchmark=textcaps,docvqa", "-m"]) == 0
    said = capsys.readouterr().out
    assert said.count("kvbench fetch model=qwen2_vl_7b") == 1
    assert "kvbench fetch benchmark=textcaps" in said and "kvbench fetch benchmark=docvqa" in said


def test_a_sweep_says_what_later_jobs_lack_before_the_first(hub, tmp_path, capsys, monkeypatch):
    from kvbench.running import launch

    order = []
    monkeypatch.setattr(launch, "_log", lambda sentence: order.append(sentence))

    def work(*_):
        order.append("job")
        raise UserError("stop")

    monkeypatch.setattr(launch, "work", work)
    words = ["benchmark=docqa_mini,docvqa", "method=fullkv", f"store={tmp_path}/s"]
    assert main(["run", "-m", *words]) == 2
    assert "kvbench fetch benchmark=docvqa" in order[-3] and order[-2:] == ["job", "job"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["model=qwen2_vl_7b", "benchmark=docqa_mini"],
            "cannot find the checkpoint Qwen/Qwen2-VL-7B-Instruct",
        ),
        (["benchmark=docvqa"], "needs the data set lmms-lab-encoder/DocVQA"),
        (["model.weights=/nope", "benchmark=docqa_mini"], "no tower.safetensors in /nope: set model.weights"),
        (["benchmark=docvqa", "benchmark.data=/nope"], "no parquet file in data=/nope"),
    ],
)
def test_what_is_missing_leaves_no_trace_and_loads_nothing(
    hub, tmp_path, capsys, monkeypatch, words, sentence
):
    from kvbench.running import run

    for name in ("load_model", "load_benchmark"):
        monkeypatch.setattr(run, name, lambda _: pytest.fail("loaded"))
    where = tmp_path / "s"
    assert main(["run", *words, "method=fullkv", "limit=1", f"store={where}"]) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.splitlines()) == 1
    # The corrected command is not refused for the mistaken one.
    assert not list(where.rglob("*.json*"))


@pytest.mark.parametrize("benchmark", ["docvqa", "longbench_qasper"])
def test_a_changed_schema_is_found_before_anything_is_loaded(tmp_path, benchmark, capsys, monkeypatch):
    for split in ("validation", "test"):
        datasets.Dataset.from_dict({"question": ["?"], "text": ["x"]}).to_parquet(
            f"{tmp_path}/{split}.parquet"
        )
    words = [f"benchmark={benchmark}", f"benchmark.data={tmp_path}"]
    assert main(["doctor", *words]) == 1
    assert "have no column" in capsys.readouterr().out
    assert main(["plan", *words]) == 0
    assert "have no column" in capsys.readouterr().out
    (cfg,) = resolved(words)["benchmark"]
    with pytest.raises(UserError, match="have no column '(questionId|context)'"):
        benchmarks.load(cfg)


def test_a_file_that_is_no_parquet_is_named(tmp_path, capsys):
    (tmp_path / "validation.parquet").write_bytes(b"<html>not found</html>")
    words = ["benchmark=docvqa", f"benchmark.data={tmp_path}"]
    assert main(["doctor", *words]) == 1
    assert "validation.parquet" in capsys.readouterr().out
    (cfg,) = resolved(words)["benchmark"]
    with pytest.raises(UserError, match="validation.parquet.*no Parquet file that can be read"):
        benchmarks.load(cfg)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (KeyError("questionId"), "have no column 'questionId'"),
        (KeyError("elsewhere"), r"cannot be loaded \(KeyError: 'elsewhere'\)"),
        (ImportError("no tool"), r"needs a package \(no tool\)"),
        (ValueError("two\nlines"), r"cannot be loaded \(ValueError: two\)"),
        (FileNotFoundError("gone"), "cannot be read"),
    ],
)
def test_hub_data_that_task_code_cannot_use(hub, monkeypatch, error, sentence):
    import lmms_eval.api.task

    snapshot(hub, "datasets--lmms-lab-encoder--DocVQA")

    def broken(**_):
        raise error

    monkeypatch.setattr(lmms_eval.api.task, "ConfigurableTask", broken)
    (cfg,) = resolved(["benchmark=docvqa"])["benchmark"]
    with pytest.raises(UserError, match=sentence):
        benchmarks.load(cfg)


@pytest.mark.parametrize(("need", "name"), [("video", "vatex"), ("lm_eval", "longbench_qasper")])
def test_a_missing_reader_stops_a_run_before_its_first_sample(monkeypatch, need, name):
    from kvbench.benchmarks import needs
    from kvbench.running import run

    monkeypatch.setitem(needs.CHECKS, need, lambda benchmark: f"{benchmark} needs {need}.")
    (cfg,) = resolved([f"benchmark={name}", "benchmark.data=micro"])["benchmark"]
    with pytest.raises(UserError, match=f"{name} needs {need}"):
        run.load_benchmark(cfg)


def test_what_needs_no_hub_is_not_looked_for_there(tmp_path):
    assert fetch.repository({"weights": str(tmp_path)}, "model") is None
    assert fetch.repository({"weights": "a/b"}, "model") == "a/b"
    assert all(finding.present for finding in doctor.model({"name": "m", "weights": "random"}))


def test_list_names_a_capacity_by_published_methods_alone(capsys, tmp_path, monkeypatch):
    import shutil

    from kvbench import paths

    conf = shutil.copytree(paths.conf_dir(), tmp_path / "conf")
    group = "defaults:\n  - /capacity@capacity: uniform\n  - /score@score: {}\n  - _self_\n"
    (conf / "method" / "mine.yaml").write_text(group.format("bacon") + "name: snapkv+bacon\nwindow: null\n")
    (conf / "method" / "short.yaml").write_text(group.format("window") + "name: short\nwindow: 8\n")
    monkeypatch.setattr(paths, "conf_dir", lambda: conf)
    assert main(["list", "methods"]) == 0
    assert "uniform = snapkv:" in capsys.readouterr().out


def test_power_says_what_its_numbers_are(capsys):
    assert main(["power", "sd=0.3", "n=100"]) == 0
    said = capsys.readouterr().out
    assert "unit of sd=0.3" in said and "100     0.08" in said
    assert main(["doctor", "--help"]) == 0
    assert "1 something is missing" in capsys.readouterr().out


def test_an_experiments_needs_are_listed_and_a_dry_run_fetches_nothing(hub, capsys):
    words = ["experiment=bacon_table1", "profile=paper"]
    assert main(["doctor", *words]) == 1
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("model qwen2_vl_7b", "model internvl3_8b", "benchmark textcaps"))
    assert main(["fetch", *words, "dry_run=true"]) == 1
    assert capsys.readouterr().out == shown and not hub.exists()
