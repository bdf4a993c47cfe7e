"""Calibration of visual heads on the toy: counted by hand, resumable, readable by sparsemm."""

import json

import pytest
import torch
from PIL import Image

from kvbench.calibration.heads import Reading, calibrate_heads, score_reading, watch
from kvbench.calibration.readings import box_readings, page_readings
from kvbench.embedded.pages import KINDS, make
from kvbench.engine import generate
from kvbench.engine.attention import plain
from kvbench.errors import UserError
from kvbench.methods import build
from kvbench.methods.capacities.sparsemm import read_head_scores
from kvbench.models import load
from kvbench.models.embedded import EmbeddedAdapter


@pytest.fixture(scope="module")
def toy():
    return load(
        {"name": "toy", "adapter": "qwen2_vl", "weights": "random", "size": "toy", "device": "cpu", "seed": 3}
    )


def reading(toy, seed):
    """Boxes carry tokens that the toy really writes; two boxes share one, so it must not count."""
    noise = torch.randint(0, 256, (112, 112, 3), generator=torch.Generator().manual_seed(seed)).byte()
    image = Image.fromarray(noise.numpy())
    tokens, _ = watch(toy, toy.prepare("Read.", [image]), 40)
    words = list(dict.fromkeys(chr(t) for t in tokens if 33 <= t < 127))
    boxes = [(w, list(range(1 + 4 * i, 5 + 4 * i))) for i, w in enumerate(words[:3])]
    return Reading(image, "Read.", [*boxes, (words[0] + "~", [0])], max_new_tokens=40)


def by_hand(toy, item):
    """The algorithm once more, from one eager forward pass over prompt and answer."""
    inputs = toy.prepare(item.question, [item.image])
    tokens, _ = watch(toy, inputs, item.max_new_tokens)
    ids = torch.cat([inputs.tensors["input_ids"], torch.tensor([tokens[:-1]], dtype=torch.long)], 1)
    later = inputs.next_position + torch.arange(len(tokens) - 1)
    positions = torch.cat([inputs.tensors["position_ids"], later.view(1, 1, -1).expand(3, 1, -1)], 2)
    tensors = {k: inputs.tensors[k] for k in ("pixel_values", "image_grid_thw")}
    with plain(toy.model, "eager"), torch.inference_mode():
        attentions = toy.model(
            input_ids=ids, position_ids=positions, output_attentions=True, **tensors
        ).attentions
    first = int(inputs.visual_mask.nonzero()[0])
    scores = torch.zeros(toy.layers, toy.query_heads)
    for step, token in enumerate(tokens):
        boxes = [
            places for word, places in item.boxes if token < 256 and chr(token) in word and chr(token).strip()
        ]
        if len(boxes) != 1:
            continue
        for layer in range(toy.layers):
            for head in range(toy.query_heads):
                most = int(attentions[layer][0, head, inputs.length - 1 + step].argmax()) - first
                scores[layer, head] += (most in boxes[0]) / len(boxes[0])
    return scores


def test_scores_equal_a_count_by_hand(toy):
    total = torch.zeros(toy.layers, toy.query_heads)
    for seed in range(3):
        item = reading(toy, seed)
        assert torch.allclose(score_reading(toy, item), by_hand(toy, item))
        total += score_reading(toy, item)
    assert total.sum() > 0


def test_file_resumes_and_reads_back(toy, tmp_path):
    items = [reading(toy, seed) for seed in range(3)]
    path = calibrate_heads(toy, items, tmp_path / "whole.json")
    table = json.loads(path.read_text())
    assert len(table) == toy.layers * toy.query_heads and all(len(v) == 3 for v in table.values())

    def broken():
        yield from items[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate_heads(toy, broken(), tmp_path / "heads.json")
    seen = []
    calibrate_heads(toy, items, tmp_path / "heads.json", progress=seen.append)
    assert seen == [3]
    assert (tmp_path / "heads.json").read_text() == path.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["heads.json", "whole.json"]
    mean = torch.stack([score_reading(toy, item) for item in items]).mean(0)
    assert torch.allclose(read_head_scores(path, toy.layers, toy.query_heads).float(), mean, atol=1e-6)


def test_bad_calibrations(toy, tmp_path):
    with pytest.raises(UserError, match="no pictures"):
        calibrate_heads(toy, [], tmp_path / "a.json")
    nothing = reading(toy, 0)
    nothing.boxes = []
    with pytest.raises(UserError, match="no head"):
        calibrate_heads(toy, [nothing], tmp_path / "b.json")
    (tmp_path / "c.json.partial").write_text('{"model": "other", "scores": {}}')
    with pytest.raises(UserError, match="another model"):
        calibrate_heads(toy, [nothing], tmp_path / "c.json")
    (tmp_path / "d.json").write_text('{"0-0": [1.0]}')
    with pytest.raises(UserError, match="0-1"):
        read_head_scores(tmp_path / "d.json", toy.layers, toy.query_heads)
    with pytest.raises(UserError, match="cannot read"):
        read_head_scores(tmp_path / "none.json", 1, 1)


def test_pictures_of_a_folder_are_read_with_their_boxes(toy, tmp_path):
    """SynthDoG as SparseMM's code keeps it; pixels become visual tokens, as the adapter has them."""
    Image.new("RGB", (112, 112), "white").save(tmp_path / "a.png")
    boxes = [
        {"chunk": "Total", "coord": [[0, 0], [27, 27]]},
        {"chunk": "12.50", "coord": [[56, 28], [111, 55]]},
    ]
    records = [{"image_name": "a.png", "2_coord": boxes}, {"image_name": "b.png", "2_coord": []}]
    (tmp_path / "synthdog.json").write_text(json.dumps(records))
    (only,) = box_readings(toy, tmp_path, 1)
    assert only.image.size == (112, 112)
    assert only.boxes == [("Total", [0]), ("12.50", [6, 7])]  # four tokens across, 28 pixels each
    with pytest.raises(UserError, match="cannot read .*b.png"):
        list(box_readings(toy, tmp_path, 2))


@pytest.mark.parametrize("content, words", [
    ("[{}]", "no picture with boxes"),
    ("{}", "is no list of pictures"),
    ("[", "cannot read"),
    ('[{"image_name": "a.png", "2_coord": [{"chunk": "x", "coord": [[1, 2]]}]}]', "two corners"),
])  # fmt: skip
def test_a_folder_without_boxes_is_refused(toy, tmp_path, content, words):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=words):
        list(box_readings(toy, tmp_path, 1))


def test_ocrbench_has_no_places_of_words(toy, tmp_path):
    from kvbench.benchmarks import micro

    with pytest.raises(UserError, match="OCRBench has answers alone.*SynthDoG"):
        list(box_readings(toy, micro.folder("ocrbench"), 1))
    with pytest.raises(UserError, match="holds 0 JSON files"):
        list(box_readings(toy, tmp_path / "none", 1))


def test_the_tokens_watched_are_the_greedy_ones(toy):
    noise = torch.randint(0, 256, (112, 112, 3), generator=torch.Generator().manual_seed(9)).byte()
    inputs = toy.prepare("Read.", [Image.fromarray(noise.numpy())])
    (answer,) = generate(toy, inputs, [build({"name": "fullkv"}, None)], max_new_tokens=12)
    assert watch(toy, inputs, 12)[0] == answer.tokens


def test_tiles_of_the_embedded_model_are_those_its_pages_name():
    """Every value has its tiles, and every word of a label that has one tile a word has its own."""
    reads = object.__new__(EmbeddedAdapter)  # where a box lies needs no weights
    found, known = list(page_readings(reads, len(KINDS))), 0
    for index, (kind, reading) in enumerate(zip(KINDS, found, strict=True)):
        page = make(kind, f"calibrate-0-{index}", test=False, dense=False)
        expected = [(f.value, sorted(f.value_tiles)) for f in page.fields]
        labels = [(f.label.split(), f.label_tiles) for f in page.fields]
        words = [(w, [t]) for ws, ts in labels if len(ws) == len(ts) for w, t in zip(ws, ts, strict=True)]
        assert page.fields and sorted(reading.boxes) == sorted(expected + words)
        known += len(words)
    assert known
