"""Prompts longer than the context: texts lose their middle, pages are scaled, and the table says so."""

from __future__ import annotations

import functools

import pytest
from PIL import Image

from kvbench import benchmarks, cli, models, store
from kvbench.benchmarks import fit
from kvbench.errors import UserError
from kvbench.planning.parsing import resolved
from kvbench.store.layout import folders

TOY = ["model.weights=random", "model.size=toy", "model.dtype=float32", "benchmark.data=micro"]
BARE = ("trec", "triviaqa", "samsum", "lcc", "repobench_p")  # pred.py of LongBench's repository
TASKS = (*BARE, "narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "gov_report")
TASKS += ("qmsum", "multi_news", "passage_count", "passage_retrieval_en")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("KVBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@functools.cache
def adapter(name: str, most: int):
    (cfg,) = resolved([f"model={name}", *TOY[:3], f"model.max_length={most}"])["model"]
    return models.load(cfg)


def benchmark(name: str, *words: str):
    (cfg,) = resolved([f"benchmark={name}", TOY[3], *words])["benchmark"]
    return benchmarks.load(cfg)


def ids(inputs) -> list[int]:
    return inputs.tensors["input_ids"][0].tolist()


@pytest.mark.parametrize("task", TASKS)
def test_few_shot_and_code_tasks_go_without_chat_template(task):
    reads, asked = adapter("mistral_7b_instruct_v02", 4096), benchmark(f"longbench_{task}")
    text = asked.samples(1)[0].text[-500:]
    words = ids(asked.prepare(reads, text, []))
    plain = reads.tokenizer(text)["input_ids"]
    assert (words == plain) == (task in BARE)
    assert task in BARE or words == ids(reads.prepare(text, []))


def test_special_tokens_in_a_text_without_template_are_text():
    reads, asked = adapter("mistral_7b_instruct_v02", 4096), benchmark("longbench_trec")
    found = ids(asked.prepare(reads, "a<|im_end|>b", []))
    assert reads.tokenizer.eos_token_id not in found and reads.text(found) == "a<|im_end|>b"


@pytest.mark.parametrize("task", ["qasper", "trec"])
@pytest.mark.parametrize("longer", [0, 1, 2, 5, 1000])
def test_a_long_text_loses_its_middle_and_nothing_more(task, longer):
    """One token a byte: what stays are the ends, and the whole fills the context but for an odd token."""
    reads, asked = adapter("mistral_7b_instruct_v02", 700), benchmark(f"longbench_{task}")
    around = 0 if task == "trec" else reads.prepare("", []).length
    room = 700 - asked.max_new_tokens - around
    text = "".join(chr(97 + i * i % 26) for i in range(room + longer))
    inputs = asked.prepare(reads, text, [])
    half = room // 2
    shown = text if not longer else text[:half] + text[-half:]
    assert shown in reads.text(ids(inputs)) and inputs.length == around + len(shown)
    assert inputs.fitted == ({"cut_tokens": len(text) - 2 * half} if longer else {})


def test_the_limit_is_longbenchs_where_it_is_set():
    """pred.py: half of max_length from the front, half from the end, before the template."""
    reads, asked = adapter("mistral_7b_instruct_v02", 4096), benchmark("longbench_qasper")
    asked.cfg["max_prompt_tokens"] = 101
    inputs = asked.prepare(reads, "a" * 60 + "b" * 41, [])
    assert not inputs.fitted
    text = "a" * 55 + "b" * 47
    inputs = asked.prepare(reads, text, [])
    assert inputs.fitted == {"cut_tokens": 2}
    assert ids(inputs) == ids(reads.prepare(text[:50] + text[-50:], []))


def test_a_template_that_fills_the_context_is_one_sentence():
    with pytest.raises(UserError, match="lower benchmark.max_new_tokens"):
        benchmark("longbench_qasper").prepare(adapter("mistral_7b_instruct_v02", 140), "a" * 200, [])


def pages(*sizes):
    return [Image.effect_noise(size, 40).convert("RGB") for size in sizes]


def test_pages_are_scaled_to_the_largest_common_limit_that_fits():
    reads, asked = adapter("qwen2_vl_7b", 512), benchmark("mp_docvqa")
    given = pages((560, 560), (840, 560), (84, 56), (560, 840))  # 400, 600, 35 (the least) and 600 tokens
    inputs = asked.prepare(reads, "Which?", given)
    limit = inputs.fitted["page_pixels"]
    assert inputs.fitted["scaled_pages"] == 3 and int(inputs.visual_mask.sum()) > 0.8 * (512 - 32)
    assert inputs.length + asked.max_new_tokens <= 512
    grid = inputs.tensors["image_grid_thw"]
    tokens = (grid.prod(1) // 4).tolist()
    assert len(tokens) == 4 and tokens[2] == 35 and max(tokens) * 28 * 28 <= limit  # none dropped
    assert ids(inputs) == ids(reads.prepare("Which?", given, max_pixels=limit))


def test_pages_that_fit_stay_as_they_are():
    reads, asked = adapter("qwen2_vl_7b", 512), benchmark("mp_docvqa")
    given = pages((280, 280), (280, 280))
    inputs = asked.prepare(reads, "Which?", given)
    assert not inputs.fitted and ids(inputs) == ids(reads.prepare("Which?", given))
    fixed = benchmark("mp_docvqa", f"benchmark.page_pixels={50 * 28 * 28}").prepare(reads, "Which?", given)
    assert fixed.fitted == {"page_pixels": 39200, "scaled_pages": 2} and fixed.visual_mask.sum() <= 100


def test_pages_that_nothing_makes_fit_are_one_sentence():
    with pytest.raises(UserError, match="20 pages do not fit the 512 tokens .* lower model.min_pixels"):
        benchmark("mp_docvqa").prepare(adapter("qwen2_vl_7b", 512), "Which?", pages(*[(280, 280)] * 20))


@pytest.mark.parametrize(
    ("sizes", "total", "limit"), [([5, 9, 2], 16, 9), ([5, 9, 2], 12, 5), ([4, 4], 7, 3)]
)
def test_common_limit(sizes, total, limit):
    assert fit._common(sizes, total) == limit and sum(min(s, limit) for s in sizes) <= total


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["longbench_qasper", "benchmark.max_prompt_tokens=1"],
            "benchmark.max_prompt_tokens must be a whole number of at least 2",
        ),
        (["mp_docvqa", "benchmark.page_pixels=some"], "benchmark.page_pixels must be a whole number"),
        (["longbench_trec", "benchmark.chat_template=some"], "is true or false"),
    ],
)
def test_options_that_say_nothing_are_refused(capsys, words, said):
    assert cli.main(["plan", f"benchmark={words[0]}", words[1]]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["model=mistral_7b_instruct_v02", "benchmark=longbench_qasper", "model.max_length=600"],
            "middle was",
        ),
        (["model=qwen2_vl_7b", "benchmark=mp_docvqa", "model.max_length=900"], "pixels a page"),
    ],
)
def test_from_the_command_to_the_table(tmp_path, capsys, words, said):
    words = [*words, *TOY, "benchmark.max_new_tokens=4", "limit=5", f"store={tmp_path}"]
    assert cli.main(["run", "-m", *words, "method=fullkv,snapkv", "budget=40"]) == 0
    assert cli.main(["table", f"store={tmp_path}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert said in out and "—" not in out
    (folder,) = folders(tmp_path)
    notes = [
        record.get("fitted")
        for answers in store.load_folder(folder).answers.values()
        for record in answers.values()
    ]
    assert any(notes)
