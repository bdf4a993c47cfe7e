"""The embedded model's parts: pages, drawing, prompts, data sets, weights."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch

import lessons
from kvbench.embedded import draw, language, load, pages, prompt, sets, tower
from kvbench.embedded import vocabulary as V
from kvbench.errors import UserError


@pytest.fixture(scope="module")
def words():
    return load.tokenizer()


@pytest.fixture(scope="module")
def model():
    return load.load()


@pytest.mark.parametrize("kind", pages.KINDS)
def test_pages_are_deterministic_and_know_their_evidence(kind):
    for dense in (True, False):
        page = pages.make(kind, 5, test=True, dense=dense)
        again = pages.make(kind, 5, test=True, dense=dense)
        assert page == again and page != pages.make(kind, 5, test=False, dense=dense)
        assert np.array_equal(np.asarray(draw.draw(page)), np.asarray(draw.draw(again)))
        classes = page.classes()
        assert len(classes) == page.rows * page.columns and 240 <= len(classes) <= 460
        for field in page.fields:
            shown = "".join(V.TOKENS[classes[t]] for t in field.value_tiles).strip()
            assert shown == field.value
            label = "".join(V.TOKENS[classes[t]] for t in field.label_tiles).strip()
            assert label == field.label.replace(" in ", " ")
        asked = [(q.question, tuple(q.evidence["label"])) for q in page.questions]
        assert len(set(asked)) == len(asked) or kind == "table"


def test_training_never_shows_what_tests_ask():
    def texts(test: bool) -> tuple[set[str], set[str]]:
        made = [
            pages.make(k, s, test=test, dense=d)
            for k in pages.KINDS
            for s in range(15)
            for d in (True, False)
        ]
        values = {f.value for p in made for f in p.fields}
        labels = {w for p in made for f in p.fields for w in f.label.split()}
        return values, labels

    train_values, train_labels = texts(False)
    test_values, test_labels = texts(True)
    assert not train_values & test_values
    assert not train_labels & pages.HELD_OUT
    assert len(test_labels & pages.HELD_OUT) > 30


def test_every_class_is_one_token(words):
    ids = V.token_ids(words)
    assert len(set(ids)) == V.SIZE
    assert all(len(words(word, add_special_tokens=False).input_ids) == 1 for word in V.PLAIN)
    assert V.pieces("Green Tea: B47 14 May") == [
        V.index(p) for p in ("Green", "Tea", ":", "B", "4", "7", "1", "4", "May")
    ]


def test_cut_reads_tiles_in_reading_order_and_pads():
    pixels = np.zeros((2 * draw.TILE_HEIGHT, 3 * draw.TILE_WIDTH, 3), np.uint8)
    for k in range(6):
        row, column = divmod(k, 3)
        pixels[
            row * draw.TILE_HEIGHT : (row + 1) * draw.TILE_HEIGHT,
            column * draw.TILE_WIDTH : (column + 1) * draw.TILE_WIDTH,
        ] = 40 * k
    from PIL import Image

    tiles = tower.cut(Image.fromarray(pixels))
    assert torch.allclose(tiles.mean(dim=(1, 2, 3)), torch.arange(6) * 40 / 127.5 - 1)
    assert tower.cut(Image.fromarray(pixels[:-1, :-1])).shape == tiles.shape


def test_prompts_are_those_of_the_lmms_eval_tasks():
    import yaml
    from lmms_eval import tasks as lmms_tasks

    root = pages.__file__ and lmms_tasks.__path__[0]

    class Loose(yaml.SafeLoader):
        pass

    Loose.add_constructor("!function", lambda loader, node: node.value)

    def special(name: str) -> dict:
        return yaml.load(open(f"{root}/{name}", encoding="utf-8"), Loose)["lmms_eval_specific_kwargs"][
            "default"
        ]

    question = "What is the Green Rent?"
    for task, file in (
        ("docvqa", "docvqa/_default_template_docvqa_yaml"),
        ("chartqa", "chartqa/chartqa.yaml"),
    ):
        options = special(file)
        assert prompt.TASKS[task](question) == options["pre_prompt"] + question + options["post_prompt"]
    options = special("textvqa/_default_template_textvqa_yaml")
    assert prompt.TASKS["textvqa"](question) == question.capitalize() + options["post_prompt"]
    assert prompt.TASKS["textcaps"]("") == special("textcaps/_default_template_textcaps_yaml")["prompt"]
    assert prompt.TASKS["detailcaps"]("") == special("detailcaps/_default_template_detailcaps_yaml")["prompt"]


def test_control_tokens_in_a_question_stay_text(words):
    ids = prompt.closing(words, "a <|im_end|> b <empty_output>")
    assert ids.count(prompt.special(words, prompt.END)) == 1
    assert prompt.special(words, prompt.IMAGE) not in ids


def test_a_packed_segment_sees_the_page_and_itself_only(words):
    page = pages.make("form", 1, test=False)
    pairs = [("docvqa", q.question, q.answer) for q in page.questions[:2]]
    both, alone = lessons.pack(words, page, pairs), lessons.pack(words, page, pairs[1:])
    prefix = len(lessons.page_ids(words, page))
    rest = len(alone.ids) - prefix
    assert torch.equal(both.ids[-rest:], alone.ids[prefix:])
    assert torch.equal(both.positions[-rest:], alone.positions[prefix:])
    assert torch.equal(both.mask[-rest:, -rest:], alone.mask[prefix:, prefix:])
    assert both.mask[-rest:, :prefix].all() and not both.mask[-rest:, prefix:-rest].any()


def test_missing_weights_are_said_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="scripts/embedded/train.py"):
        load.load(tmp_path)


def test_missing_language_model_names_the_fix(tmp_path, monkeypatch):
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="fetch model=embedded"):
        language.folder()
    with pytest.raises(UserError, match="fetch benchmark=docqa_mini"):
        sets.folder()


def test_sets_have_the_original_schemas():
    from datasets import load_dataset
    from PIL import Image

    wanted = {
        "docqa_mini": {"questionId", "question", "image", "docId", "answers"},
        "textqa_mini": {"image_id", "question_id", "question", "image", "answers", "ocr_tokens"},
        "chartqa_mini": {"type", "question", "answer", "image"},
        "caption_mini": {"question_id", "image", "image_id", "caption_str"},
        "describe_mini": {
            "image",
            "binary",
            "GT_Caption_GPT4O",
            "GT_Caption_GPT4V",
            "GT_Caption_Gemini15Pro",
        },
    }
    for name, columns in wanted.items():
        file = sets.folder() / name / f"{sets.SPLITS[name]}.parquet"
        data = load_dataset("parquet", data_files={"x": str(file)}, split="x")
        assert len(data) == sets.SAMPLES and columns <= set(data.column_names)
        about = json.loads(data[0]["kvbench"])
        image = data[0]["image"] if name != "describe_mini" else Image.open(io.BytesIO(data[0]["binary"]))
        assert image.size == (about["columns"] * draw.TILE_WIDTH, about["rows"] * draw.TILE_HEIGHT)
    chart = {
        row["type"]
        for row in load_dataset(
            "parquet", data_files={"x": str(sets.folder() / "chartqa_mini" / "test.parquet")}, split="x"
        )
    }
    assert chart == {"human_test", "augmented_test"}


def test_shipped_weights_are_small():
    assert sum(file.stat().st_size for file in load.WEIGHTS.rglob("*") if file.is_file()) < 12_000_000


def test_the_tower_reads_held_out_pages(model):
    eyes = model[0].model.vision_tower
    right = []
    for kind in pages.KINDS:
        page = pages.make(kind, 77_000, test=True)
        tiles = tower.cut(draw.draw(page))
        right += (eyes.logits(tiles).argmax(-1) == torch.tensor(page.classes())).tolist()
    assert np.mean(right) >= 0.99


def test_the_model_answers_through_its_eyes(model):
    llava, words = model
    page = pages.make("form", 77_001, test=True)
    tiles = tower.cut(draw.draw(page))[None]
    hits = 0
    for question in page.questions[:4]:
        ids = [
            *prompt.opening(words),
            *[llava.config.image_token_id] * tiles.shape[1],
            *prompt.closing(words, prompt.TASKS["docvqa"](question.question)),
        ]
        out = llava.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            pixel_values=tiles,
            max_new_tokens=12,
        )
        hits += words.decode(out[0, len(ids) :], skip_special_tokens=True) == question.answer
    assert hits >= 3
