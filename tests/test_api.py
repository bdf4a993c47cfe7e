"""The Python API: the answers of `kvbench run`, models left as they were, stores as frames, the notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import autotoys
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

import kvbench
from kvbench import store
from kvbench.cli import main
from kvbench.errors import UserError
from kvbench.planning import compose
from kvbench.running import run

ROOT = Path(__file__).resolve().parent.parent
METHODS = ["fullkv", "snapkv+bacon(gamma=0.5)", {"method": "adakv+ecokv", "window": 4}]


@pytest.fixture(scope="module")
def model():
    return kvbench.load("embedded")


@pytest.fixture(scope="module")
def asked():
    with compose.session():
        config = compose.plain(compose.compose(["benchmark=docqa_mini"]), resolve=True)["benchmark"]
    benchmark = run.load_benchmark(config)
    return [(sample.text, sample.images()) for sample in benchmark.samples(2)]


def test_it_says_what_run_says(model, asked, tmp_path):
    cells = ["method=fullkv,snapkv+bacon,adakv+ecokv", "method.score.gamma=0.5", "budget=64,32", "limit=2"]
    words = ["benchmark=docqa_mini", "benchmark.max_new_tokens=12", f"store={tmp_path}/s"]
    assert main(["run", "-m", *words, *cells]) == 0
    stored = {}
    for cell in store.cells(tmp_path / "s"):
        answers = store.load_folder(cell.folder).answers[cell.digest]
        stored[cell.method, cell.budget] = [answers[index]["tokens"] for index in sorted(answers)]
    every = list(kvbench.generate(model, asked, methods=METHODS, budgets=[64, 32], max_new_tokens=12))
    for label, budget in every[0]:
        told = [answers[label, budget].tokens for answers in every]
        assert told == stored[label.partition("(")[0], budget]
    assert len(every[0]) == 5 == len(stored) and every[0]["fullkv", 64] is every[0]["fullkv"]


def test_what_an_answer_tells(model, asked):
    text, images = asked[0]
    answers = kvbench.generate(model, text, images=images, methods=METHODS, budgets=32, max_new_tokens=4)
    answer = answers["snapkv+bacon(gamma=0.5)", 32]
    assert (
        answer.entries == [[32] * model.adapter.kv_heads] * model.adapter.layers and answer.mean_entries == 32
    )
    assert [len(head) for layer in answer.kept for head in layer] == [
        n for layer in answer.entries for n in layer
    ]
    assert {"prefill", "select", "decode", "all"} <= set(answer.seconds) and answers["fullkv"].kept is None
    assert list(answers.frame["method"]) == ["fullkv", "snapkv+bacon(gamma=0.5)", "adakv+ecokv(window=4)"]
    page = answers._repr_html_()
    assert page.count("<tr>") == 4 and "snapkv+bacon(gamma=0.5)" in page and answer.text in page
    figure = answers.overlay("snapkv+bacon(gamma=0.5)", 32)
    shares = answers._shares(answer, answers._grids[0])
    places = answers._visual.nonzero().flatten()
    first = sum(int(places[0]) in head.tolist() for layer in answer.kept for head in layer)
    heads = model.adapter.layers * model.adapter.kv_heads
    assert shares[0, 0] == pytest.approx(first / heads) and figure.axes
    with pytest.raises(UserError, match="there is no answer of .*'snapkv', 32"):
        answers["snapkv", 32]
    with pytest.raises(UserError, match="no picture"):
        kvbench.generate(model, "Hello", methods=["snapkv"], budgets=[64], max_new_tokens=1).overlay(
            "snapkv", 64
        )


@pytest.mark.parametrize(("methods", "budgets", "said"), [
    (["snapkw"], [64], "did you mean snapkv"), (["snapkv+bacon(gama=1)"], [64], "did you mean gamma"),
    (["snapkv("], [64], "cannot read the method"), (["snapkv(1)"], [64], "write NAME=VALUE"),
    (["snapkv"], [8], "larger than the window"), (["fullkv(a=1)"], [64], "has no options"),
    ([], [64], "at least one"),
])  # fmt: skip
def test_mistakes_are_one_sentence(model, methods, budgets, said):
    with pytest.raises(UserError, match=said):
        kvbench.generate(model, "Hello", methods=methods, budgets=budgets)


def test_refresh_and_until(model, asked):
    text, images = "Describe the page in detail.", asked[0][1]
    settings = {"methods": ["snapkv"], "budgets": [48], "window": 32, "max_new_tokens": 16}
    once, again, fixed = (
        kvbench.generate(model, text, images, refresh=refresh, **settings)["snapkv", 48]
        for refresh in (None, "exact", {"name": "threshold", "tau": 1.0, "detector": "exact"})
    )
    assert again.tokens != once.tokens == fixed.tokens  # a drift of 1 is never passed
    whole = kvbench.generate(model, *asked[0], methods=["fullkv"])["fullkv"]
    cut = kvbench.generate(model, *asked[0], methods=["fullkv"], until=[whole.text[1]])["fullkv"]
    assert (whole.stopped, cut.stopped, cut.text) == ("eos", "until", whole.text[:1])


@pytest.mark.parametrize("name", ["Qwen3", "llava"])
def test_wrap_answers_as_generate_and_unwrap_leaves_no_trace(name, tmp_path):
    autotoys.save(name, tmp_path)
    sees = name == "llava"
    kind, reader = (
        (AutoModelForImageTextToText, AutoProcessor) if sees else (AutoModelForCausalLM, AutoTokenizer)
    )
    mine = kind.from_pretrained(tmp_path).train()
    next(mine.parameters()).requires_grad_(False)
    before = [parameter.requires_grad for parameter in mine.parameters()]
    attention = mine.config.get_text_config(decoder=True)._attn_implementation
    model = kvbench.wrap(mine, reader.from_pretrained(tmp_path))
    images = [Image.new("RGB", (60, 60), "red")] * sees
    said = kvbench.generate(model, "What is this?", images, methods=["fullkv"], max_new_tokens=6)
    inputs = model.adapter.prepare("What is this?", images)
    assert model.unwrap() is mine and mine.training
    assert [parameter.requires_grad for parameter in mine.parameters()] == before
    assert mine.config.get_text_config(decoder=True)._attn_implementation == attention
    with torch.inference_mode():
        theirs = mine.eval().generate(**inputs.tensors, max_new_tokens=6, do_sample=False)
    assert theirs[0, inputs.length :].tolist() == said["fullkv"].tokens
    loaded = kvbench.load(str(tmp_path), dtype="float32")
    assert loaded.name == tmp_path.name
    with pytest.raises(UserError, match="only a model that kvbench.wrap"):
        loaded.unwrap()


def test_load_names_what_is_there():
    with pytest.raises(UserError, match="did you mean embedded"):
        kvbench.load("embeded")
    with pytest.raises(UserError, match="unknown key 'model.dtpe': did you mean model.dtype"):
        kvbench.load("embedded", dtpe="float32")


def test_results_and_compare_are_frames(tmp_path):
    from test_compare import fill

    fill(tmp_path / "a", ["one two"] * 4)
    fill(tmp_path / "b", ["one", "two", "three", "one"])
    frame = kvbench.results(tmp_path / "a")
    assert {"model", "method", "budget", "metric", "value", "ci_low"} <= set(frame.columns) and len(frame)
    both = kvbench.compare(tmp_path / "a", tmp_path / "b")
    assert set(both["method"]) == {"fullkv", "snapkv"} and (both["changed"] > 0).any()
    with pytest.raises(UserError, match="there is no store"):
        kvbench.results(tmp_path / "none")


def test_importing_kvbench_loads_nothing_heavy():
    code = "import sys, kvbench; assert not {'torch', 'pandas', 'hydra', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_notebook_runs(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.chdir(tmp_path)  # it writes a store
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    book = nbformat.read(ROOT / "docs/notebook.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = " ".join(str(output.get("data", output)) for output in outputs)
    assert "snapkv+bacon(gamma=0.5)" in shown and "image/png" in shown and "snapkv+mixkv" in shown
