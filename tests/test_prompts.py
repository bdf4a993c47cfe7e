"""Wordings of a prompt, and two-stage chain of thought: what each stage is asked, and by whom."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import minidata
import pytest

from kvbench import benchmarks, store
from kvbench.benchmarks.base import Sample
from kvbench.cli import main
from kvbench.errors import UserError
from kvbench.planning import plan
from kvbench.running import run, staged

QUESTION = {"textqa_mini": str.capitalize}  # what the task's own doc_to_text does to a question


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for name in ("docqa_mini", "textqa_mini", "chartqa_mini", "caption_mini"):
        minidata.write(root, name)
    return root


def asked(folder, name, prompt, *more):
    """The first sample of a mini set under a prompt: of the data, whichever ``limit`` would ask first."""
    words = [f"benchmark={name}", f"benchmark.data={folder}/{name}", f"prompt={prompt}", "method=fullkv"]
    (job,) = plan.jobs([*words, *more])
    return next(s for s in benchmarks.load(job.config["benchmark"]).samples() if s.index == 0)


@pytest.mark.parametrize("name", ["docqa_mini", "textqa_mini", "chartqa_mini"])
def test_v1_puts_the_instruction_first_and_v2_the_question(folder, name):
    question = QUESTION.get(name, str)(minidata.QUESTIONS[0])
    usual, v1, v2 = (asked(folder, name, prompt) for prompt in ("default", "v1", "v2"))
    assert usual.text.startswith(f"{question}\nAnswer the question")
    assert v1.text.endswith(question) and "single word" in v1.text.removesuffix(question)
    before, _, after = v2.text.partition(question)
    assert "single word" in after and "single word" not in before
    assert len({usual.text, v1.text, v2.text}) == 3
    assert [sample.then for sample in (usual, v1, v2)] == [None] * 3
    assert v1.final(None) == v1.text


def test_captions_have_no_question_to_move(folder):
    texts = {asked(folder, "caption_mini", prompt).text for prompt in ("default", "v1", "v2")}
    assert len(texts) == 3 and all("caption" in text and "sentence" in text for text in texts)


@pytest.mark.parametrize("name", ["docqa_mini", "textqa_mini", "chartqa_mini", "caption_mini"])
def test_the_second_stage_words_question_and_reasoning(folder, name):
    sample = asked(folder, name, "cot")
    question = "" if name == "caption_mini" else QUESTION.get(name, str)(minidata.QUESTIONS[0])
    last = sample.final("first {this} then that")
    assert "first {this} then that" in last and "{reasoning}" not in last
    assert question in sample.text and question in last and "reasoning" not in sample.text.lower()
    assert "single word" not in sample.text and ("single" in last or "one-sentence" in last)


def test_a_wording_is_part_of_a_cell_and_the_usual_one_changes_none():
    def cell(*words):
        ((cell,),) = ([*job.cells] for job in plan.jobs(["benchmark=docvqa", "method=fullkv", *words]))
        return cell

    usual = cell()
    assert not {"wording", "prompts", "defaults"} & usual.config["benchmark"].keys()
    other = "benchmark.prompts.v1.pre_prompt='Say it in a word. '"
    assert cell(other).digest == usual.digest
    assert len({usual.digest, *(cell(f"prompt={name}").digest for name in ("v1", "v2", "cot"))}) == 4
    assert cell("prompt=v1", other).digest != cell("prompt=v1").digest
    assert "single word" in cell("prompt=v1").config["benchmark"]["wording"]["pre_prompt"]


def test_an_unknown_prompt_names_the_known_ones(capsys):
    assert main(["plan", "benchmark=docvqa", "prompt=terse"]) == 2
    said = capsys.readouterr().err
    assert "docvqa has no prompt 'terse'" in said and "cot, default, v1, v2" in said
    assert main(["plan", "benchmark=mmmu", "prompt=v1"]) == 2
    assert "choose one of default" in capsys.readouterr().err


def test_a_second_stage_without_the_reasoning_is_refused(folder):
    with pytest.raises(UserError, match="would not see the first"):
        asked(folder, "docqa_mini", "cot", "benchmark.prompts.cot.answer.post_prompt=''")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("+benchmark.prompts.v1.prefix='?'", "sets prefix, but its task reads pre_prompt, post_prompt"),
        ("+benchmark.prompts.cot.answer.suffix='?'", "sets suffix"),
        ("benchmark.prompts.cot.max_new_tokens=null", "no max_new_tokens of at least 1"),
    ],
)
def test_a_wording_that_would_be_passed_over_is_refused(folder, words, message):
    with pytest.raises(UserError, match=message):
        asked(folder, "docqa_mini", "v1" if ".v1." in words else "cot", words)


class Asking:
    reasoning_tokens = 7

    def prepare(self, adapter, text, pictures, new_tokens=None):
        assert (adapter, pictures) == ("adapter", ["picture"])
        return SimpleNamespace(text=text, fitted={"cut_tokens": len(text)})


def answered(thoughts, sample):
    """Two stages with methods that reason as `thoughts` says; (answers, what was asked of whom)."""
    calls = []

    def ask(inputs, methods, **settings):
        calls.append((inputs.text, list(methods), settings))
        said = [thoughts[m] if len(calls) == 1 else f"{m} after {inputs.text}" for m in methods]
        return [SimpleNamespace(text=text, reasoning=None) for text in said]

    methods = list(thoughts)
    return staged.answers(ask, "adapter", Asking(), sample, ["picture"], methods), calls


def test_each_method_answers_given_its_own_reasoning():
    sample = Sample("q", 0, "why?", list, then="given {reasoning}: why?")
    thoughts = {"a": "one", "b": "two", "c": "one", "d": ""}
    answers, calls = answered(thoughts, sample)
    assert calls[0] == ("why?", ["a", "b", "c", "d"], {"max_new_tokens": 7, "until": [], "trace": False})
    # Reasoned alike: asked together.
    assert [(text, methods) for text, methods, _ in calls[1:]] == [
        ("given one: why?", ["a", "c"]),
        ("given two: why?", ["b"]),
        ("given : why?", ["d"]),
    ]
    assert all(settings == {} for *_, settings in calls[1:])
    assert [answer.reasoning for answer in answers] == list(thoughts.values())
    assert [answer.fitted["cut_tokens"] for answer in answers] == [15, 15, 15, 12]  # of the last prompts
    assert [answer.text for answer in answers] == [f"{m} after given {t}: why?" for m, t in thoughts.items()]


def test_one_stage_is_asked_once():
    answers, calls = answered({"a": "x", "b": "y"}, Sample("q", 0, "why?", list))
    assert calls == [("why?", ["a", "b"], {})]
    assert [(answer.text, answer.reasoning) for answer in answers] == [("x", None), ("y", None)]


def test_chain_of_thought_from_config_to_journal(tmp_path, monkeypatch):
    """The embedded model on a question: journal, prefills, budgets, and the answer of the plain model."""
    generating = importlib.import_module("kvbench.engine.generate")
    prefills = []
    plain = generating.prefill

    def counted(adapter, inputs, **settings):
        prefills.append(adapter.text(inputs.tensors["input_ids"][0].tolist()))
        return plain(adapter, inputs, **settings)

    monkeypatch.setattr(generating, "prefill", counted)
    words = ["model=embedded", "benchmark=docqa_mini", "prompt=cot", "limit=1", f"store={tmp_path}/s"]
    words += [
        "method=fullkv,snapkv,snapkv+bacon",
        "budget=1000,4",
        "method.window=2",
        "benchmark.max_new_tokens=6",
    ]
    words += ["benchmark.prompts.cot.max_new_tokens=10"]
    assert main(["run", "-m", *words]) == 0
    (job,) = plan.jobs(words, multirun=True)
    answers = store.load_folder(job.folder).answers
    benchmark = run.load_benchmark(job.config["benchmark"])
    adapter = run.load_model(job.config["model"])
    (first,) = benchmark.samples(1)
    found = {first.index: [answers[cell.digest][first.index] for cell in job.cells]}
    distinct = {index: {record["reasoning"] for record in records} for index, records in found.items()}
    assert (
        len(prefills) == sum(1 + len(texts) for texts in distinct.values()) and len(distinct[first.index]) > 1
    )
    for sample in [first]:
        for cell in job.cells:
            record = answers[cell.digest][sample.index]
            inputs = adapter.prepare(sample.final(record["reasoning"]), sample.images())
            assert record["prompt_length"] == inputs.length
            kept = store.unpack_kept(record["kept"])
            budget = inputs.length if cell.budget is None else min(cell.budget, inputs.length)
            assert sum(map(sum, kept)) == budget * adapter.layers * adapter.kv_heads
            assert len(record["tokens"]) <= 6
        # Budgets above the prompt, and the stock model asked twice, say the same as fullkv.
        same = [
            record for cell, record in zip(job.cells, found[sample.index], strict=True) if cell.budget != 4
        ]
        assert len({(record["reasoning"], record["text"]) for record in same}) == 1
        reasoning = greedy(adapter, adapter.prepare(sample.text, sample.images()), 10)
        assert reasoning == same[0]["reasoning"]
        last = adapter.prepare(sample.final(reasoning), sample.images())
        assert greedy(adapter, last, 6) == same[0]["text"]
    assert main(["figures", f"store={tmp_path}/s", "overlays=1"]) == 0


def greedy(adapter, inputs, longest):
    """What transformers' own generate says."""
    from kvbench.engine.attention import plain

    with plain(adapter.model):
        out = adapter.model.generate(**inputs.tensors, max_new_tokens=longest, do_sample=False)
    return adapter.text(out[0, inputs.length :].tolist())
