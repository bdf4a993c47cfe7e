"""Qwen2.5-VL (arXiv 2502.13923): windowed vision attention; a clip's positions follow its seconds."""

from __future__ import annotations

from typing import Any

from kvbench.models import toy
from kvbench.models.mrope import MRopeAdapter, token_ids


def full(words: Any):
    """Qwen2.5-VL-7B."""
    from transformers import Qwen2_5_VLConfig

    text = {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        "eos_token_id": words.eos_token_id,
    }
    vision = {"hidden_size": 1280, "out_hidden_size": 3584, "tokens_per_second": 2}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **token_ids(words))


def small(words: Any):
    """The same structure in miniature."""
    from transformers import Qwen2_5_VLConfig

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    text = {**toy.TEXT, "vocab_size": len(words), "rope_parameters": rope}
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 96,
        "window_size": 56,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
        "initializer_range": 0.2,
    }
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, initializer_range=0.2, **token_ids(words))


class Qwen25VLAdapter(MRopeAdapter):
    """Qwen2.5-VL of any size."""

    types = ("qwen2_5_vl",)
    configs = {"toy": small, "full": full}
    processor_name, video_processor_name = "Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"


load = Qwen25VLAdapter.load
