"""Adapter of Qwen2-VL: native-resolution pixels, M-RoPE positions.

The positions of an image take less room than its tokens, so the first generated token stands *before*
position N. Its position is read off the prompt's own position ids and passed explicitly at every step.

`weights: random` builds the same class without a checkpoint: `size: toy` for tests, `size: 7b` for speed
and memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvbench.errors import UserError
from kvbench.models.base import Adapter, Inputs, resolve_device, resolve_dtype, stop_tokens

SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PATCH = 28  # pixels along the side of one language-model token


class Qwen2VLAdapter(Adapter):
    """One user turn: images, then text."""

    def __init__(self, *args: Any, min_pixels: int, max_pixels: int, **kwargs: Any):
        from transformers import Qwen2VLImageProcessor

        super().__init__(*args, **kwargs)
        size = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
        self.image_processor = Qwen2VLImageProcessor(size=size)

    def prepare(self, text: str, images: list) -> Inputs:
        config = self.model.config
        pixels = self.image_processor(images=images, return_tensors="pt") if images else None
        merge = config.vision_config.spatial_merge_size**2
        ids: list[int] = []
        if self.system is not None:
            ids += self._turn("system", self._encode(self.system))
        content: list[int] = []
        for grid in pixels["image_grid_thw"].tolist() if images else []:
            count = grid[0] * grid[1] * grid[2] // merge
            content += [
                config.vision_start_token_id,
                *[config.image_token_id] * count,
                config.vision_end_token_id,
            ]
        ids += self._turn("user", content + self._encode(text))
        ids += [self._special("<|im_start|>"), *self._encode("assistant\n")]
        inputs = self.text_inputs(ids)
        if images:
            self._add_images(inputs, pixels)
        return inputs

    def visual_grids(self, images: list) -> list[dict[str, Any]]:
        """Merged patches; the image is scaled to the grid, so nothing stands over the edge."""
        merge = self.model.config.vision_config.spatial_merge_size
        sizes = self.image_processor(images=images, return_tensors="pt")["image_grid_thw"].tolist()
        return [
            {"rows": rows // merge, "columns": columns // merge, "width": 1.0, "height": 1.0}
            for _, rows, columns in sizes
        ]

    def _add_images(self, inputs: Inputs, pixels: Any) -> None:
        """Pixels, and the three position ids of every token."""
        ids = inputs.tensors["input_ids"]
        inputs.visual_mask = (ids[0] == self.model.config.image_token_id).cpu()
        grid = pixels["image_grid_thw"].to(self.device)
        kinds = (ids == self.model.config.image_token_id).int()
        positions, _ = self.model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grid)
        inputs.next_position = int(positions.max()) + 1
        inputs.tensors.update(
            pixel_values=pixels["pixel_values"].to(self.device),
            image_grid_thw=grid,
            mm_token_type_ids=kinds,
            position_ids=positions,
        )

    def decode_positions(self, positions: Tensor) -> Tensor:
        """[B] -> [3, B, 1]: a generated token has the same temporal, height and width position."""
        return positions.view(1, -1, 1).expand(3, -1, -1)

    def _turn(self, role: str, content: list[int]) -> list[int]:
        start, end = self._special("<|im_start|>"), self._special("<|im_end|>")
        return [start, *self._encode(f"{role}\n"), *content, end, *self._encode("\n")]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _special(self, token: str) -> int:
        return self.tokenizer.convert_tokens_to_ids(token)


class ByteTokenizer:
    """One token per UTF-8 byte plus Qwen2-VL's special tokens: what the toy needs of a tokenizer."""

    eos_token_id = 257  # <|im_end|>

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Bytes as ids."""
        return list(text.encode("utf-8"))

    def convert_tokens_to_ids(self, token: str) -> int:
        """Id of a special token."""
        return 256 + SPECIAL.index(token)

    def decode(self, tokens: list[int], **_: Any) -> str:
        """Text of the bytes; other ids are dropped."""
        return bytes(t for t in tokens if t < 256).decode("utf-8", errors="replace")


def random_config(size: str):
    """Qwen2-VL's config: `7b` as published, `toy` with the same structure in miniature."""
    from transformers import Qwen2VLConfig

    if size == "7b":
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
        text = {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "max_position_embeddings": 32768,
            "rope_parameters": rope,
        }
        return Qwen2VLConfig(text_config=text, vision_config={"hidden_size": 3584})
    if size != "toy":
        raise UserError(f"unknown size `{size}` of random Qwen2-VL weights: use toy or 7b.")
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    # The wide initialisation makes attention sharp, so that a wrong position or lost entry shows.
    text = {
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 256 + len(SPECIAL),
        "max_position_embeddings": 4096,
        "initializer_range": 0.2,
        "rope_parameters": rope,
    }
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 96, "num_heads": 2, "mlp_ratio": 2}
    tokens = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257}
    return Qwen2VLConfig(
        text_config={**text, **tokens},
        vision_config=vision,
        vision_start_token_id=258,
        vision_end_token_id=259,
        image_token_id=260,
        video_token_id=261,
        initializer_range=0.2,
    )


def load(cfg: dict[str, Any]) -> Qwen2VLAdapter:
    """The model of conf/model/*.yaml: `weights` is a hub id, a folder, or `random` (with `size`, `seed`)."""
    from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

    device = resolve_device(cfg)
    dtype = resolve_dtype(cfg, device)
    weights = cfg.get("weights")
    if weights == "random":
        config = random_config(cfg.get("size") or "toy")
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(cfg.get("seed") or 0)
            model = Qwen2VLForConditionalGeneration._from_config(config, dtype=dtype)
        tokenizer, stop_ids = ByteTokenizer(), frozenset({ByteTokenizer.eos_token_id})
    else:
        revision = cfg.get("revision")
        try:
            tokenizer = AutoTokenizer.from_pretrained(weights, revision=revision)
            model = Qwen2VLForConditionalGeneration.from_pretrained(weights, revision=revision, dtype=dtype)
        except OSError as error:
            raise UserError(
                f"cannot load the checkpoint {weights}: download it with `hf download {weights}` or set "
                f"model.weights to a folder that holds it."
            ) from error
        stop_ids = stop_tokens(model, tokenizer)
    return Qwen2VLAdapter(
        cfg["name"],
        model.to(device),
        tokenizer,
        stop_ids=stop_ids,
        max_length=cfg.get("max_length"),
        system=cfg.get("system_prompt"),
        head_scores=cfg.get("head_scores"),
        min_pixels=cfg.get("min_pixels") or 32 * PATCH**2,
        max_pixels=cfg.get("max_pixels") or 16384 * PATCH**2,
    )
