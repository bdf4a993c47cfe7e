"""Qwen2-VL (arXiv 2409.12191)."""

from __future__ import annotations

from typing import Any

from kvbench.models import toy
from kvbench.models.mrope import MRopeAdapter, token_ids


def full(words: Any):
    """Qwen2-VL-7B."""
    from transformers import Qwen2VLConfig

    text = {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        "eos_token_id": words.eos_token_id,
    }
    return Qwen2VLConfig(text_config=text, vision_config={"hidden_size": 3584}, **token_ids(words))


def small(words: Any):
    """The same structure in miniature."""
    from transformers import Qwen2VLConfig

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    text = {**toy.TEXT, "vocab_size": len(words), "rope_parameters": rope}
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 96, "num_heads": 2, "mlp_ratio": 2}
    return Qwen2VLConfig(text_config=text, vision_config=vision, initializer_range=0.2, **token_ids(words))


class Qwen2VLAdapter(MRopeAdapter):
    """Qwen2-VL of any size."""

    types = ("qwen2_vl",)
    configs = {"toy": small, "full": full}
    processor_name, video_processor_name = "Qwen2VLProcessor", "Qwen2VLVideoProcessor"


load = Qwen2VLAdapter.load
