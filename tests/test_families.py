"""Every model family at toy size: the true transformers classes, random weights, no checkpoint."""

import functools

import pytest
import torch
from decoding import contents
from PIL import Image

from kvbench import methods, models, paths
from kvbench.calibration.readings import page_readings
from kvbench.checks import DTYPES
from kvbench.engine import generate, prefill
from kvbench.engine.attention import plain
from kvbench.engine.cache import CompactCache
from kvbench.engine.generate import observe
from kvbench.errors import UserError
from kvbench.methods import registry
from kvbench.methods.select import kept_mask, to_sets
from kvbench.models.content import Video, parts
from kvbench.planning import config, plan

FAMILIES = {
    "qwen2_vl": {"adapter": "qwen2_vl"},
    "qwen2_5_vl": {"adapter": "qwen2_5_vl"},
    "qwen3_vl": {"adapter": "qwen3_vl"},
    "qwen3_vl_moe": {"adapter": "qwen3_vl", "architecture": "moe"},
    "llava_next": {"adapter": "llava_next"},
    "internvl": {"adapter": "internvl"},
    "mistral": {"adapter": "text", "architecture": "mistral"},
    "llama": {"adapter": "text", "architecture": "llama"},
}
VISION = list(FAMILIES)[:6]
MROPE = VISION[:4]
VIDEO = [name for name in VISION if name != "llava_next"]
QUESTION = "What is written in the second line of the sign, and in which colour? "


@functools.cache
def adapter(family):
    cfg = {"name": family, "weights": "random", "size": "toy", "device": "cpu", "seed": 3}
    return models.load({**cfg, **FAMILIES[family]})


def picture(seed, size=(112, 84)):
    noise = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(noise.byte().numpy())


def clip(seed, frames=4):
    return Video([picture(100 * seed + i, (56, 84)) for i in range(frames)], fps=2.0)


def prompts(family):
    """Name -> inputs: text, one image, two images, images among the text, a clip with an image."""
    reads = adapter(family)
    found = {"text": reads.prepare(QUESTION, [])}
    if family in VISION:
        found["image"] = reads.prepare(QUESTION, [picture(1)])
        found["images"] = reads.prepare(QUESTION, [picture(2), picture(3, (60, 140))])
        found["interleaved"] = reads.prompt(["See ", picture(4), " and ", picture(5, (84, 56)), QUESTION])
    if family in VIDEO:
        found["clip"] = reads.prompt([clip(6), picture(7), QUESTION])
    return found


def reference(reads, inputs, count):
    """Greedy tokens of model.generate with transformers' own attention, cache and positions."""
    tensors = {key: value for key, value in inputs.tensors.items() if key != "position_ids"}
    stop = sorted(reads.stop_ids)
    with plain(reads.model):
        out = reads.model.generate(
            **tensors, max_new_tokens=count, do_sample=False, eos_token_id=stop, pad_token_id=0
        )
    return out[0, inputs.length :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_fullkv_and_budgets_above_the_prompt_equal_generate(family):
    reads = adapter(family)
    grid = [methods.build({"name": "fullkv"}, None), methods.build({"name": "adakv+bacon"}, 4000)]
    seen = set()
    for name, inputs in prompts(family).items():
        expected = reference(reads, inputs, 12)
        seen.update(expected)
        answers = generate(reads, inputs, grid, max_new_tokens=12)
        assert [answer.tokens for answer in answers] == [expected, expected], name
    assert len(seen) > 8  # a toy that repeats itself would prove nothing


@pytest.mark.parametrize("family", MROPE)
def test_mrope_positions_of_generated_tokens_follow_the_prompt(family):
    reads = adapter(family)
    found = prompts(family)
    assert found["text"].next_position == found["text"].length
    for name in ("image", "images", "interleaved", "clip"):
        assert found[name].next_position != found[name].length
        assert found[name].next_position == int(found[name].tensors["position_ids"].max()) + 1
    inputs = found["images"]
    expected = reference(reads, inputs, 12)
    inputs.next_position = inputs.length
    full = [methods.build({"name": "fullkv"}, None)]
    assert generate(reads, inputs, full, max_new_tokens=12)[0].tokens != expected


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_one_token(family):
    reads = adapter(family)
    inputs = reads.text_inputs([65])
    grid = [methods.build({"name": "fullkv"}, None), methods.build({"name": "snapkv+bacon"}, 64)]
    expected = reference(reads, inputs, 6)
    assert [a.tokens for a in generate(reads, inputs, grid, max_new_tokens=6)] == [expected] * 2


EVERY = [
    *[f"{name}+window" for name in registry.names("capacity") if name not in ("fullkv", "sparsemm")],
    *[f"snapkv+{name}" for name in registry.names("score")],
]


def every_method(reads):
    """All capacities and all scores; sparsemm with the toy's own made-up head scores."""
    names = [name for name in EVERY if methods.parse(name)]
    return [methods.build({"name": name, "window": 8}, 40) for name in [*names, "sparsemm"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_keeps_what_it_promises_on_every_sample(family):
    reads = adapter(family)
    reads._head_scores = torch.rand(reads.layers, reads.query_heads, dtype=torch.float64)
    grid = every_method(reads)
    for seed in (1, 2):  # the second sample too: nothing of the first may linger
        pictures = [picture(seed)] if family in VISION else []
        inputs = reads.prepare(QUESTION + "Again, please. " * seed, pictures)
        with torch.inference_mode():
            extras = frozenset().union(*(m.extras for m in grid)) & {"attention_sums"}
            prompt = prefill(reads, inputs, window=8, extras=extras)
            masks = [kept_mask(m, observe(prompt, reads.head_scores)) for m in grid]
            cache = CompactCache(prompt, [to_sets(mask) for mask in masks])
        answers = generate(reads, inputs, grid, max_new_tokens=4)
        for branch, (method, mask, answer) in enumerate(zip(grid, masks, answers, strict=True)):
            assert answer.kept == mask.sum(-1).tolist()
            assert int(mask.sum()) < mask.numel(), method.name  # compression is active
            if method.name.startswith("snapkv"):
                assert answer.kept == [[40] * reads.kv_heads] * reads.layers
            for layer in range(reads.layers):
                for head in range(reads.kv_heads):
                    keys, _ = contents(cache, branch, layer, head)
                    assert torch.equal(keys, prompt.keys[layer][head][mask[layer, head]])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_refresh_policy_runs_and_keeps_its_size(family):
    reads = adapter(family)
    policies = [name for name in registry.names("refresh") if name != "none"]
    spec = {"name": "snapkv+bacon", "window": 8}
    grid = [methods.build({**spec, "refresh": {"name": name}}, 40) for name in policies]
    for seed in (1, 2):
        inputs = reads.prepare(QUESTION, [picture(seed)] if family in VISION else [])
        for answer in generate(reads, inputs, grid, max_new_tokens=6):
            assert answer.tokens and answer.kept == [[40] * reads.kv_heads] * reads.layers


def attention_off(reads):
    """Make every vision token a function of its own patches alone."""
    names = ("attn.proj.weight", "attn.proj.bias", "out_proj.weight", "out_proj.bias", "projection_layer")
    return {
        name: value.clone().zero_()
        for name, value in reads.model.named_parameters()
        if ("visual" in name or "vision" in name) and any(part in name for part in names)
    }


def features(reads, image):
    inputs = reads.prepare("x", [image])
    keys = ("pixel_values", "image_grid_thw", "image_sizes")
    tensors = {key: inputs.tensors[key] for key in keys if key in inputs.tensors}
    out = reads.model.model.get_image_features(**tensors, return_dict=True).pooler_output
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in out])


@pytest.mark.parametrize("size", [(112, 112), (224, 112), (60, 150)])
@pytest.mark.parametrize("family", VISION)
def test_box_tokens_are_those_that_change_with_the_pixels(family, size):
    reads = adapter(family)
    box = (size[0] // 2 + 3, size[1] // 3, size[0] - 9, size[1] // 3 + 12)
    before = Image.new("RGB", size, "black")
    after = before.copy()
    after.paste("white", box)
    kept = {name: value.clone() for name, value in reads.model.named_parameters()}
    try:
        reads.model.load_state_dict(attention_off(reads), strict=False)
        old, new = features(reads, before), features(reads, after)
    finally:
        reads.model.load_state_dict(kept, strict=False)
    assert len(old) == int(reads.prepare("x", [before]).visual_mask.sum())
    change = (new - old).norm(dim=-1)
    changed = set((change > 0).nonzero().flatten().tolist())
    found = set(reads.box_tokens(size, box))
    wide = (box[0] - 6, box[1] - 6, box[2] + 6, box[3] + 6)  # resizing blurs over a few pixels
    if family == "llava_next":
        wide = (box[0] - 12, box[1] - 12, box[2] + 12, box[3] + 12)
    assert found and found <= changed <= set(reads.box_tokens(size, wide))
    assert len(changed) < len(old)


SIZES = {  # parameters of the published checkpoints, in billions
    "qwen2_vl": 8.29,
    "qwen2_5_vl": 8.29,
    "qwen3_vl": 8.77,
    "qwen3_vl_moe": 31.07,
    "llava_next": 7.57,
    "internvl": 7.94,
    "mistral": 7.24,
    "llama": 8.03,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_full_size_has_the_parameters_of_the_checkpoint(family):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from kvbench.models import text, toy

    cfg = FAMILIES[family]
    if cfg["adapter"] == "text":
        shape, auto = text.CONFIGS[cfg["architecture"]]["full"](toy.tokenizer()), AutoModelForCausalLM
    else:
        reads = type(adapter(family))
        shape, auto = reads.configs["full"](reads.toy_tokenizer()), AutoModelForImageTextToText
    with torch.device("meta"):
        model = auto.from_config(shape, dtype=torch.bfloat16)
    assert round(sum(p.numel() for p in model.parameters()) / 1e9, 2) == SIZES[family]


def test_missing_checkpoint_and_wrong_revision(tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    cfg = {"name": "m", "adapter": "qwen2_vl", "weights": "a/b", "revision": "v2", "device": "cpu"}
    with pytest.raises(UserError, match="hf download a/b --revision v2"):
        models.load(cfg)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="revision v2 of a/b is not on this machine .c0ffee is"):
        models.load(cfg)
    with pytest.raises(UserError, match="holds no config.json"):
        models.load({**cfg, "weights": str(tmp_path)})
    with pytest.raises(UserError, match="is a llama checkpoint, but model m takes qwen2_vl"):
        models.load({**cfg, "weights": str(snapshot)})


def test_sliding_layers_are_refused_by_name():
    from transformers import AutoModelForCausalLM, MistralConfig

    from kvbench.models import toy
    from kvbench.models.text import TextAdapter

    words = toy.tokenizer()
    shape = MistralConfig(**toy.TEXT, head_dim=16, vocab_size=len(words), sliding_window=64)
    model = AutoModelForCausalLM.from_config(shape)
    with pytest.raises(UserError, match="sliding_attention .window of 64"):
        TextAdapter("m", model, words, stop_ids=[257])


def test_auto_dtype_and_unknown_sizes_are_refused():
    cfg = {"name": "m", "adapter": "qwen2_vl", "weights": "random", "device": "cpu"}
    with pytest.raises(UserError, match="unknown dtype"):
        models.load({**cfg, "dtype": "auto"})
    with pytest.raises(UserError, match="toy or full"):
        models.load({**cfg, "size": "7b"})


def test_prompts_longer_than_the_context():
    reads = adapter("llama")
    inputs = reads.prepare("word " * 1000, [])
    grid = [methods.build({"name": "fullkv"}, None)]
    with pytest.raises(UserError, match="exceed the 4096"):
        generate(reads, inputs, grid, max_new_tokens=4)


def test_marks_say_where_pictures_go():
    assert parts("a<image>b", ["X"], interleave=False) == ["X", "a<image>b"]
    assert parts("a<image>b<image>", ["X", "Y"], interleave=True) == ["a", "X", "b", "Y"]
    with pytest.raises(UserError, match="1 <image> marks for 2 pictures"):
        parts("a<image>b", ["X", "Y"], interleave=True)


def test_models_without_eyes_or_video_say_so():
    with pytest.raises(UserError, match="reads text only"):
        adapter("llama").prepare("x", [picture(1)])
    with pytest.raises(UserError, match="reads no video"):
        adapter("llava_next").prepare("x", [clip(1)])


@pytest.mark.parametrize("family", VISION)
def test_readings_of_pages_have_boxes_among_the_visual_tokens(family):
    reads = adapter(family)
    (reading,) = page_readings(reads, 1)
    seen = int(reads.prepare(reading.question, [reading.image]).visual_mask.sum())
    assert len(reading.boxes) > 3
    assert all(places and 0 <= places[0] <= places[-1] < seen for _, places in reading.boxes)


def test_files_count_by_content(tmp_path):
    first, same, other = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    first.write_text('{"0-0": [1.0]}')
    same.write_text('{"0-0": [1.0]}')
    other.write_text('{"0-0": [2.0]}')

    def digest(path):
        capacity = {"name": "sparsemm", "scores": str(path)}
        cell = config.identity({"head_scores": str(path)}, {}, {"capacity": capacity}, 64, 0, "default")
        assert str(path) not in str(cell), "where a file lies is not stored"
        return config.digest(cell)

    assert digest(first) == digest(same) != digest(other)
    with pytest.raises(UserError, match="cannot read .*none.json.*model.head_scores"):
        digest(tmp_path / "none.json")


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (paths.conf_dir() / "model").glob("[!_]*.yaml"))
)
def test_configs_compose_and_name_a_dtype(name):
    (job,) = plan.jobs([f"model={name}", "benchmark=docqa_mini", "method=fullkv"])
    model = job.config["model"]
    assert model["adapter"] in models.FAMILIES and model["dtype"] in DTYPES
    with pytest.raises(UserError, match="dtype"):
        plan.jobs([f"model={name}", "benchmark=docqa_mini", "method=fullkv", "model.dtype=auto"])


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_next"])
def test_visual_grids_lie_where_boxes_do(family):
    """A grid's cell sees the box of its place: the overlays lay tokens over the picture by it."""
    reads = adapter(family)
    size = (200, 120)
    page = Image.new("RGB", size, "white")
    (grid,) = reads.visual_grids([page])
    rows, columns = grid["rows"], grid["columns"]
    inputs = reads.prepare("?", [page])
    seen = int(inputs.visual_mask.sum())
    assert rows * columns == seen if family != "llava_next" else rows * columns < seen
    row, column = rows - 1, columns // 2
    wide, high = size[0] / columns, size[1] / rows
    box = (column * wide + 1, row * high + 1, (column + 1) * wide - 1, (row + 1) * high - 1)
    assert [t for t in reads.box_tokens(size, box) if t < rows * columns] == [row * columns + column]
    if family != "llava_next":
        assert len(reads.visual_grids([page, page])) == 2
    else:
        assert reads.visual_grids([page, page]) is None
