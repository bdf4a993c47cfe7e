"""Checkpoints of architectures without an adapter of ours: their answers are those of model.generate."""

from __future__ import annotations

import json

import autotoys
import numpy as np
import pytest
import torch
from PIL import Image

from kvbench import methods, models
from kvbench.cli import main
from kvbench.engine.attention import plain
from kvbench.engine.generate import generate
from kvbench.errors import UserError
from kvbench.models import auto

PICTURES = [name for name in autotoys.PICTURES if name != "paligemma"]
PAGE = Image.fromarray((np.random.default_rng(0).random((80, 110, 3)) * 255).astype("uint8"))
OTHER = Image.fromarray((np.random.default_rng(1).random((60, 60, 3)) * 255).astype("uint8"))


def load(name: str, folder, **options):
    autotoys.save(name, folder)
    return models.load(
        {
            "adapter": "auto",
            "name": name,
            "weights": str(folder),
            "dtype": "float32",
            "device": "cpu",
            **options,
        }
    )


def answers(adapter, inputs, *names: str) -> list:
    chosen = [methods.build({"name": name, "window": 8}, 24) for name in names]
    return generate(adapter, inputs, chosen, max_new_tokens=12)


@pytest.mark.parametrize("name", [*autotoys.TEXTS, *PICTURES])
def test_it_answers_as_its_own_generate_does(name, tmp_path):
    images = [OTHER] if name in PICTURES else []
    adapter = load(name, tmp_path)
    assert isinstance(adapter, auto.Checked) and not adapter.checked
    adapter.prepare("What does it say here, all in all?", [PAGE] * len(images))
    assert adapter.checked
    inputs = adapter.prepare("And what is the total of the bill, with the tip?", images)
    own = {key: value for key, value in inputs.tensors.items() if key != "position_ids"}
    with plain(adapter.model), torch.inference_mode():
        theirs = adapter.model.generate(**own, max_new_tokens=12, do_sample=False)[0, inputs.length :]
    full, kept = answers(adapter, inputs, "fullkv", "snapkv+bacon")
    assert full.tokens == theirs.tolist() and len(set(full.tokens)) > 1
    assert sum(map(sum, kept.kept)) == 24 * adapter.layers * adapter.kv_heads
    if images:
        assert inputs.visual_mask.sum() >= 4
    if name == "glm4v":
        assert inputs.next_position < inputs.length, "pictures take less room than tokens"


@pytest.mark.parametrize("name", ["paligemma"])
def test_what_is_not_understood_is_refused_at_the_first_prompt(name, tmp_path):
    adapter = load(name, tmp_path)
    with pytest.raises(UserError, match=f"does not understand model {name}.*an adapter of its own"):
        adapter.prepare("What is the total?", [PAGE])


def test_a_wrong_position_is_noticed(tmp_path, monkeypatch):
    adapter = load("glm4v", tmp_path)
    monkeypatch.setattr(
        auto.AutoVision, "decode_positions", lambda self, p: (p + 1).view(1, -1, 1).expand(3, -1, -1)
    )
    with pytest.raises(UserError, match="first tokens are not model.generate's"):
        adapter.prepare("What is the total?", [PAGE])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_the_logits_are_close(dtype, tmp_path, monkeypatch):
    adapter = load("Qwen3", tmp_path, dtype=dtype)
    adapter.prepare("What is the total?", [])
    adapter.checked = False
    own = auto._logits
    monkeypatch.setattr(auto, "_logits", lambda *words: own(*words).roll(1))
    with pytest.raises(UserError, match="logits are not the model's own"):
        adapter.prepare("What is the total?", [])


@pytest.mark.parametrize(("config", "said"), [
    ({"model_type": "mamba"}, "linear_attention|no attention heads"),
    ({"model_type": "t5"}, "has an encoder"),
    ({"model_type": "mllama"}, "cross-attention"),
    ({"model_type": "gemma2"}, "caps its attention's logits"),
    ({"model_type": "olmo3"}, "sliding_attention"),
])  # fmt: skip
def test_other_architectures_are_refused_before_loading(config, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=said):
        models.load({"adapter": "auto", "name": "x", "weights": str(tmp_path)})


def test_from_the_command_line_under_the_checkpoints_own_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    autotoys.save("llava", tmp_path / "my-llava")
    words = ["model=auto", "model.dtype=float32", "benchmark=docvqa", "benchmark.data=micro"]
    words += ["benchmark.max_new_tokens=4", "budget=32", "method.window=8", "limit=2"]
    grid = ["-m", "method=fullkv,snapkv", "store=runs/x", "model.weights=./my-llava"]
    assert main(["run", *words, *grid]) == 0
    assert (tmp_path / "runs/x/my-llava/docvqa").is_dir()
    assert main(["table", "store=runs/x"]) == 0 and "my-llava" in capsys.readouterr().out
    assert main(["run", *words, "method=snapkv", "store=runs/y"]) == 2
    assert "set model.weights" in capsys.readouterr().err
