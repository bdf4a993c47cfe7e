"""A checkpoint is read whole or refused in one sentence; 16 bits work; no chat template is said once."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvbench import models
from kvbench.engine import generate
from kvbench.errors import UserError
from kvbench.methods import build
from kvbench.models import load, toy

FAMILIES = {"text": {"adapter": "text", "architecture": "llama"}, "qwen2_vl": {"adapter": "qwen2_vl"}}
SYSTEM_REFUSED = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
)


def config(family, folder):
    return {"name": "toy", **FAMILIES[family], "weights": str(folder), "device": "cpu"}


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, tmp_path_factory):
    """(family, folder) of a toy saved as a checkpoint."""
    family, folder = request.param, tmp_path_factory.mktemp("checkpoint")
    model = load({**config(family, "random"), "seed": 1})
    model.model.save_pretrained(folder)
    getattr(model, "processor", model.tokenizer).save_pretrained(folder)
    return family, folder


@pytest.fixture
def checkpoint(saved, tmp_path):
    family, folder = saved
    return family, shutil.copytree(folder, tmp_path / "checkpoint")


def change(folder, file="config.json", **values):
    path = folder / file
    document = json.loads(path.read_text())
    text = document.get("text_config", document)
    text.update(values)
    path.write_text(json.dumps(document))


def refused(checkpoint, said, **options):
    with pytest.raises(UserError, match=said) as caught:
        load({**config(*checkpoint), **options})
    assert "\n" not in str(caught.value)


def test_a_whole_checkpoint_is_read(checkpoint):
    assert load(config(*checkpoint)).layers == 4


def test_a_missing_weight_is_named(checkpoint):
    path = checkpoint[1] / "model.safetensors"
    tensors = load_file(path)
    (gone,) = [name for name in tensors if "layers.2.self_attn.q_proj.weight" in name]
    del tensors[gone]
    save_file(tensors, path, {"format": "pt"})
    refused(checkpoint, r"lacks .*layers\.2\.self_attn\.q_proj\.weight: download it again")


def test_a_config_of_more_layers_than_are_stored_is_refused(checkpoint):
    change(checkpoint[1], num_hidden_layers=6, layer_types=["full_attention"] * 6)
    refused(checkpoint, r"lacks .*layers\.4\..* and \d+ more")


def test_a_config_of_fewer_layers_than_are_stored_is_refused(checkpoint):
    change(checkpoint[1], num_hidden_layers=3, layer_types=["full_attention"] * 3)
    refused(checkpoint, r"has no place for: .*layers\.3\.")


def test_a_config_of_another_width_is_refused(checkpoint):
    change(checkpoint[1], intermediate_size=64)
    refused(checkpoint, "another shape|cannot be read")


def test_tied_heads_are_not_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(toy.TEXT, "tie_word_embeddings", True)
    model = load(config("text", "random"))
    model.model.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert load(config("text", tmp_path)).layers == 4


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_pointer_in_place_of_a_file_is_named(checkpoint, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
    (checkpoint[1] / name).write_text(pointer)
    refused(checkpoint, f"{name} is a Git-LFS pointer in place of the file: run `git lfs pull`")


@pytest.mark.parametrize("share", [0, 0.0001, 0.6])
def test_a_cut_file_is_named(checkpoint, share):
    path = checkpoint[1] / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    refused(checkpoint, "model.safetensors is cut off or damaged .*: download it again")


def test_a_quantised_checkpoint_is_one_sentence(checkpoint):
    document = json.loads((checkpoint[1] / "config.json").read_text())
    document["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (checkpoint[1] / "config.json").write_text(json.dumps(document))
    refused(checkpoint, r"is quantised \(gptq\) and cannot be loaded here .*take the unquantised")


def test_no_chat_template_is_said_once_when_the_model_is_loaded(checkpoint):
    (checkpoint[1] / "chat_template.jinja").unlink()
    refused(checkpoint, "has no chat template: put its chat_template.jinja beside the weights")
    if checkpoint[0] == "text":
        refused(checkpoint, r"or model\.chat=none for bare text")
    if checkpoint[0] == "text":
        bare = load({**config(*checkpoint), "chat": "none", "system_prompt": "Be brief."})
        assert bare.prepare("héllo", []).tensors["input_ids"][0].tolist() == list(
            b"Be brief.\n\nh\xc3\xa9llo"
        )
        refused(checkpoint, "model.chat must be null", chat="no")


def test_a_template_without_system_role_is_said_once(checkpoint):
    file = checkpoint[1] / "chat_template.jinja"
    template = file.read_text()
    load({**config(*checkpoint), "system_prompt": "Be brief."})
    for words in (SYSTEM_REFUSED + template, template.replace("in messages", "in messages[1:]")):
        file.write_text(words)
        refused(checkpoint, "takes no system prompt: set model.system_prompt=null", system_prompt="Be brief.")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_embedded_model_answers_in_16_bits(dtype):
    from PIL import Image

    adapter = models.load({"name": "embedded", "adapter": "embedded", "dtype": dtype, "device": "cpu"})
    inputs = adapter.prepare("What is the total?", [Image.new("RGB", (192, 96), "white")])
    chosen = [build({"name": "fullkv"}, None), build({"name": "snapkv", "window": 4}, 12)]
    found = generate(adapter, inputs, chosen, max_new_tokens=3)
    assert adapter.model.dtype == getattr(torch, dtype) and all(answer.tokens for answer in found)
