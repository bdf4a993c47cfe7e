"""Prompts, pictures and limits are those of lmms-eval's own tasks; what is missing is said in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import minidata
import pytest
from fakestore import benchmark_cfg
from hypothesis import given
from hypothesis import strategies as st

from kvbench import benchmarks
from kvbench.benchmarks.base import spread
from kvbench.benchmarks.lmms import _picture_digests
from kvbench.errors import UserError

CACHE = os.environ.get("KVBENCH_CACHE")  # the fixture below hides the real cache from its module
MINI = ("docqa_mini", "textqa_mini", "chartqa_mini", "caption_mini", "describe_mini")
WORD = "\nAnswer the question using a single word or phrase."
PROMPTS = {
    "docqa_mini": f"who signed the form?{WORD}",
    "textqa_mini": f"Who signed the form?{WORD}",  # the task capitalises
    "chartqa_mini": "who signed the form?\nAnswer the question with a single word.",
    "caption_mini": "Provide a one-sentence caption for the provided image.",
    "describe_mini": "Describe this image in detail.",
}
TOKENS = {"docqa_mini": 32, "textqa_mini": 32, "chartqa_mini": 16, "caption_mini": 64, "describe_mini": 128}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    patch = pytest.MonkeyPatch()
    patch.setenv("KVBENCH_CACHE", str(folder / "cache"))
    result = {name: benchmarks.load(benchmark_cfg(name, minidata.write(folder, name))) for name in MINI}
    yield result
    patch.undo()


@pytest.mark.parametrize("name", MINI)
def test_samples_are_what_lmms_eval_asks(loaded, name):
    benchmark = loaded[name]
    samples = benchmark.at(range(3))
    assert [sample.index for sample in samples] == [0, 1, 2]
    assert len({sample.id for sample in samples}) == 3
    assert samples[1].text == PROMPTS[name]
    (image,) = samples[1].images()
    assert (image.mode, image.size) == ("RGB", (9, 8))
    assert (benchmark.max_new_tokens, benchmark.until) == (TOKENS[name], [])
    # The text that lmms-eval itself would send, and the limits it would send with it.
    task = benchmark.task
    task.build_all_requests(limit=3)
    assert [request.args[0] for request in task.instances] == [sample.text for sample in samples]
    sent = task.instances[0].args[1]
    assert (sent["max_new_tokens"], sent["until"]) == (TOKENS[name], [])


def test_samples_decode_no_picture_until_asked(loaded, monkeypatch):
    monkeypatch.setattr(loaded["docqa_mini"].task.config, "doc_to_visual", lambda doc: 1 / 0)
    samples = loaded["docqa_mini"].samples()
    assert len(samples) == 4
    with pytest.raises(ZeroDivisionError):
        samples[0].images()


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_that_leaves_nothing_is_refused(loaded, limit):
    with pytest.raises(UserError, match="at least 1"):
        loaded["docqa_mini"].samples(limit)


def test_a_limit_above_the_size_means_all(loaded):
    assert len(loaded["docqa_mini"].samples(1000)) == 4


@pytest.mark.parametrize("name", MINI)
def test_limits_take_samples_in_the_order_of_the_data_set(loaded, name):
    benchmark = loaded[name]
    for limit in (1, 2, 3):
        taken = benchmark.chosen(limit)
        assert taken == sorted(taken) == sorted(benchmark.order[:limit])
        assert [sample.index for sample in benchmark.samples(limit)] == taken


class TestSpread:
    def test_every_picture_is_asked_about_before_one_is_asked_again(self):
        order = spread({index: f"page {index // 5}" for index in range(100)})
        assert sorted(order) == list(range(100))
        for turn in range(5):
            assert {index // 5 for index in order[20 * turn : 20 * turn + 20]} == set(range(20))

    def test_neither_the_first_pages_nor_the_first_questions_come_first(self):
        order = spread({index: index // 5 for index in range(100)})
        assert {index // 5 for index in order[:5]} != set(range(5))
        assert len({index % 5 for index in order[:20]}) == 5

    def test_pages_of_unequal_size_end_one_by_one(self):
        assert [i // 3 for i in spread({0: "a", 1: "a", 2: "a", 3: "b"})][2:] == [0, 0]

    @given(st.lists(st.integers(0, 6), min_size=1, max_size=40))
    def test_names_and_the_order_they_are_given_in_do_not_matter(self, pages):
        named = {index: f"page {page}" for index, page in enumerate(pages)}
        other = {index: pages[index] for index in reversed(range(len(pages)))}
        assert spread(named) == spread(other)
        assert len({named[i] for i in spread(named)[: len(set(pages))]}) == len(set(pages))


def test_rows_without_a_picture_are_about_nothing_in_common(tmp_path):
    import datasets
    from PIL import Image

    pictures = [Image.new("RGB", (4, 4), colour) for colour in ("red", "red", "blue")]
    docs = datasets.Dataset.from_dict(
        {"image": [*pictures, None, None]}, features=datasets.Features({"image": datasets.Image()})
    )
    found = _picture_digests(docs, [4, 0, 1, 2, 3])
    assert list(found) == [4, 0, 1, 2, 3]
    assert found[0] == found[1] and len(set(found.values())) == 4


def test_pictures_are_read_once(loaded, monkeypatch):
    from kvbench.benchmarks import lmms

    read = []
    own = lmms._picture_digests
    monkeypatch.setattr(
        lmms, "_picture_digests", lambda docs, indices: read.append(indices) or own(docs, indices)
    )
    benchmark = loaded["chartqa_mini"]
    benchmark._clusters.clear()
    vars(benchmark).pop("order", None)
    assert list(benchmark.clusters([2])) == [2] and len(benchmark.order) == 4
    benchmark.clusters([0, 3])
    assert read == [[2], [0, 1, 3]]


def test_the_stand_in_for_capture_does_not_stay(loaded):
    assert "capture_metric" not in sys.modules


def test_unknown_kind_metric_and_task():
    with pytest.raises(UserError, match="kind"):
        benchmarks.load({"name": "x", "kind": "y"})
    with pytest.raises(UserError, match="no metric 'f1'"):
        benchmarks.load({**benchmark_cfg("documents_mini"), "metrics": ["f1"]})
    with pytest.raises(UserError, match="no task 'nothing'"):
        benchmarks.load({**benchmark_cfg("docqa_mini"), "task": "nothing"})


def test_missing_sets_name_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="fetch benchmark=docqa_mini"):
        benchmarks.load(benchmark_cfg("docqa_mini"))
    with pytest.raises(UserError, match="no parquet file"):
        benchmarks.load(benchmark_cfg("docqa_mini", tmp_path))


def test_missing_hub_data_name_the_data_set(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="lmms-lab-encoder/DocVQA.*kvbench fetch benchmark=docvqa"):
        benchmarks.load(benchmark_cfg("docvqa"))


def test_real_benchmarks_take_local_parquet(tmp_path, monkeypatch):
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))
    folder = minidata.write(tmp_path, "docqa_mini")
    benchmark = benchmarks.load(benchmark_cfg("docvqa", folder))
    assert benchmark.at([1])[0].text == PROMPTS["docqa_mini"]
    assert benchmark.task.config.task == "docvqa_val"


def test_documents_are_twenty_prompts_with_sources():
    benchmark = benchmarks.load(benchmark_cfg("documents_mini"))
    samples = benchmark.samples()
    assert len(samples) == 20 and len({sample.id for sample in samples}) == 20
    assert samples[0].text.startswith("It is a truth universally acknowledged")
    assert samples[0].text.endswith("\n\nSummarize the text above in a few sentences.")
    assert samples[0].images() == []
    assert all(entry["source"] and entry["licence"] and entry["title"] for entry in benchmark.index)
    assert max(len(sample.text) for sample in samples) < 8000


def test_documents_have_800_to_1500_tokens(monkeypatch):
    from kvbench.embedded import language

    if CACHE is None:
        monkeypatch.delenv("KVBENCH_CACHE", raising=False)
    else:
        monkeypatch.setenv("KVBENCH_CACHE", CACHE)
    folder = language.folder()  # an error that names `fetch model=embedded` when there is none
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for sample in benchmarks.load(benchmark_cfg("documents_mini")).samples():
        turn = [{"role": "user", "content": sample.text}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True)
        assert 800 <= len(prompt["input_ids"]) <= 1500, sample.id


def test_texts_that_may_only_be_copied_verbatim_are_whole():
    """The end of each licence as published; the whole of it where this system has a copy."""
    from kvbench.benchmarks.documents import FOLDER

    ends = {
        "GPL-3": "<https://www.gnu.org/licenses/why-not-lgpl.html>.",
        "GPL-2": "Public License instead of this License.",
        "LGPL-2.1": "That's all there is to it!",
        "GFDL-1.3": "to permit their use in free software.",
    }
    for name, end in ends.items():
        text = (FOLDER / "texts" / f"{name}.txt").read_bytes()
        assert text.decode().rstrip().endswith(end), name
        system = f"/usr/share/common-licenses/{name}"
        if os.path.exists(system):
            with open(system, "rb") as original:
                assert text == original.read()


def test_importing_benchmarks_and_analysis_is_light():
    code = (
        "import sys, kvbench.benchmarks, kvbench.analysis, kvbench.analysis.tables, kvbench.analysis.scoring;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'lmms_eval', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
