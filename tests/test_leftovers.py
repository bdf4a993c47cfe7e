"""Nothing outlives what it belongs to: failed loads, deleted cells, counts of other prompts; and slips."""

from __future__ import annotations

import json

import fakes
import pytest

from kvbench import cli, store
from kvbench.errors import UserError
from kvbench.planning import compose, plan
from kvbench.store import retained


@pytest.fixture
def kvbench(monkeypatch, tmp_path):
    fakes.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    return fakes.kvbench


def test_how_many_samples_are_asked_is_each_prompts_and_seeds_own(kvbench, capsys):
    words = ["run", "method=fullkv", "store=runs"]
    assert kvbench(*words, "limit=5") == 0
    assert kvbench(*words, "seed=1", "limit=1") == 0
    assert kvbench(*words, "benchmark=docqa_mini", "limit=5") == 0
    assert kvbench(*words, "benchmark=docqa_mini", "prompt=v1", "limit=1") == 0
    capsys.readouterr()
    assert cli.main(["status", "runs"]) == 0
    assert "12 answers, 0 missing, 0 failed" in capsys.readouterr().out
    folder = store.cells("runs")[0].folder
    found = store.load_folder(folder)
    assert {group: found.asked(group) for group in found.sizes} == {(0, "default"): 5, (0, "v1"): 1}


def test_a_store_of_before_says_it_of_its_own_prompt_when_it_runs_again(kvbench, capsys):
    """Earlier releases noted a limit's samples for all prompts and seeds alike."""
    words = ["run", "method=fullkv", "store=runs"]
    assert kvbench(*words, "limit=5") == 0 and kvbench(*words, "seed=1", "limit=1") == 0
    from kvbench.store.journal import read, seal

    (journal,) = store.layout.journals(store.cells("runs")[0].folder)
    records = [{k: v for k, v in one.items() if k != "crc"} for one in read(journal)]
    for record in records:
        if "size" in record:
            del record["seed"], record["prompt"]
    journal.write_bytes(b"".join(map(seal, records)))
    assert cli.main(["status", "runs"]) == 1
    assert kvbench(*words, "seed=1", "limit=1") == 0 and kvbench(*words, "limit=5") == 0
    assert cli.main(["status", "runs"]) == 0


def test_cleaned_cells_leave_nothing(kvbench):
    words = ["run", "-m", "method=fullkv,snapkv", "budget=64,32", "method.window=16", "store=runs", "limit=2"]
    assert kvbench(*words) == 0
    full, *others = store.cells("runs")
    folder = full.folder
    shares = {cell.digest: "AAAA" for cell in others}
    for index, cells in enumerate((shares, {others[0].digest: "AAAA"})):
        retained.file_of(folder, index).parent.mkdir(exist_ok=True)
        retained.file_of(folder, index).write_text(json.dumps({"index": index, "grids": [], "cells": cells}))
    from kvbench.store import clean

    clean.forget(folder, [others[0].digest])
    assert (
        retained.read(folder, 0)["cells"] == {others[1].digest: "AAAA"} and retained.read(folder, 1) is None
    )
    assert store.load_folder(folder).sizes and list(folder.glob("samples-*.json")), "others were asked them"
    clean.forget(folder, [full.digest, others[1].digest])
    left = {path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert left == {"journal.jsonl"}
    assert not store.load_folder(folder).sizes, "no count of samples that nothing was asked"


@pytest.mark.parametrize("part", ["load_model", "load_benchmark"])
@pytest.mark.parametrize("failure", [UserError("it is cut short"), RuntimeError("it is cut short")])
def test_a_load_that_failed_leaves_nothing(kvbench, monkeypatch, tmp_path, part, failure):
    from kvbench.running import run

    def broken(config):
        raise failure

    good = getattr(run, part)
    monkeypatch.setattr(run, part, broken)
    words = ["run", "method=snapkv", "budget=64", "store=runs", "limit=2"]
    if isinstance(failure, UserError):
        assert kvbench(*words) == 2
    else:
        with pytest.raises(RuntimeError):
            kvbench(*words)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(run, part, good)
    assert kvbench(*words, "model.dtype=float16") == 0, "the corrected checkpoint is another version"


def test_a_load_that_failed_adds_no_cell_to_a_store(kvbench, monkeypatch):
    from kvbench.running import run

    words = ["run", "store=runs", "limit=2", "budget=64"]
    assert kvbench(*words, "method=fullkv") == 0

    def broken(config):
        raise UserError("it is cut short")

    monkeypatch.setattr(run, "load_model", broken)
    assert kvbench(*words, "method=snapkv") == 2
    assert [cell.method for cell in store.cells("runs")] == ["fullkv"]


def test_retained_passes_over_cells_that_read_a_file(kvbench, tmp_path, capsys):
    scores = tmp_path / "heads.json"
    scores.write_text("{}")
    words = ["run", "method=snapkv", "budget=64", "store=runs", "limit=2"]
    assert kvbench(*words, f"+model.head_scores={scores}") == 0
    from kvbench.running.retained import compute

    said = []
    assert compute(tmp_path / "runs", 1, log=said.append) == 0
    assert said == ["fake / fake_qa: no overlay where model or method reads a file."]


@pytest.mark.parametrize("text, scored", [
    ("defaults:\n  - /capacity@capacity: uniform\n  - /score@score: window\n  - _self_\nname: x\n", True),
    ("# no score here\ndefaults:\n  - /capacity@capacity: uniform\nname: x\n", False),
    ("name: x\ncapacity: null\ntitle: underscored\n", False), ("", False),
])  # fmt: skip
def test_a_method_has_a_score_when_its_defaults_say_so(tmp_path, text, scored):
    (tmp_path / "x.yaml").write_text(text)
    assert compose._has_score(tmp_path / "x.yaml") is scored


@pytest.mark.parametrize("words, said", [
    (["exclude=1"], "exclude must be a list of MODEL/METHOD patterns"),
    (["exclude={a:1}"], "exclude must be a list of MODEL/METHOD patterns"),
    (["exclude=[1,[2]]"], "exclude takes patterns MODEL/METHOD"),
    (["decode=1"], "decode must be set key by key"), (["store=[a]"], "store must be one folder"),
    (["benchmark.metric=null"], "benchmark docqa_mini has no metric: add metric: VALUE to conf/benchmark"),
    (["benchmark.max_new_tokens=null"], "benchmark docqa_mini has no max_new_tokens"),
    (["model.adapter=null"], "model embedded has no adapter"),
])  # fmt: skip
def test_each_slip_has_its_sentence(words, said):
    with pytest.raises(UserError) as caught:
        plan.jobs(words)
    assert said in str(caught.value) and "Dict" not in str(caught.value) and "Config" not in str(caught.value)


def test_efficiency_of_a_benchmark_whose_config_interpolates(monkeypatch, tmp_path):
    """``textvqa`` has a revision that is worked out from its data."""
    from kvbench.bench import workload

    assert workload.config("benchmark", "textvqa")["revision"] is None
    assert len(workload.config("benchmark", "textvqa", ["data=micro"])["revision"]) == 10
    assert workload.config("model", "embedded")["revision"] not in (None, "")
    with pytest.raises(UserError, match="did you mean model.weights"):
        workload.config("model", "smollm2", ["wieghts=random"])
    with pytest.raises(UserError, match="unknown model"):
        workload.config("model", "smollm3")


def test_a_checkpoint_without_its_tokenizer_says_so(tmp_path):
    from transformers import LlamaForCausalLM

    from kvbench import models
    from kvbench.models import text, toy

    LlamaForCausalLM(text.small_llama(toy.tokenizer())).save_pretrained(tmp_path)
    with pytest.raises(UserError) as caught:
        models.load({"name": "mine", "adapter": "text", "weights": str(tmp_path), "device": "cpu"})
    sentence = str(caught.value)
    assert sentence.startswith(f"the tokenizer of {tmp_path} is missing or damaged") and "\n" not in sentence
