"""Qwen3-VL, dense and mixture of experts (arXiv 2511.21631).

QK-norm, interleaved M-RoPE, DeepStack: features of deeper vision layers are added to the visual tokens after
the first decoder layers. That happens in prefill alone, so decode needs none of it. A clip is a sequence of
frames, each after its time written as text.
"""

from __future__ import annotations

from typing import Any

from kvbench.models import toy
from kvbench.models.mrope import MRopeAdapter, token_ids

ROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
COMMON = {
    "num_attention_heads": 32,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "rope_parameters": ROPE,
    "tie_word_embeddings": False,
}


def dense(words: Any):
    """Qwen3-VL-8B."""
    from transformers import Qwen3VLConfig

    text = {
        **COMMON,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "eos_token_id": words.eos_token_id,
    }
    return Qwen3VLConfig(text_config=text, vision_config={"out_hidden_size": 4096}, **token_ids(words))


def experts(words: Any):
    """Qwen3-VL-30B-A3B: 128 experts a layer, 8 of them for a token."""
    from transformers import Qwen3VLMoeConfig

    text = {
        **COMMON,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "eos_token_id": words.eos_token_id,
    }
    return Qwen3VLMoeConfig(text_config=text, vision_config={"out_hidden_size": 2048}, **token_ids(words))


def _small_parts(words: Any) -> dict[str, Any]:
    rope = {**ROPE, "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 96,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
        "initializer_range": 0.2,
    }
    text = {**toy.TEXT, "head_dim": 16, "vocab_size": len(words), "rope_parameters": rope}
    return {"text_config": text, "vision_config": vision, "initializer_range": 0.2, **token_ids(words)}


def small(words: Any):
    """The dense structure in miniature."""
    from transformers import Qwen3VLConfig

    return Qwen3VLConfig(**_small_parts(words))


def small_experts(words: Any):
    """The structure with experts in miniature: 4 of them, 2 for a token."""
    from transformers import Qwen3VLMoeConfig

    parts = _small_parts(words)
    parts["text_config"].update(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
    return Qwen3VLMoeConfig(**parts)


class Qwen3VLAdapter(MRopeAdapter):
    """Qwen3-VL of any size, dense or with experts; random weights are dense."""

    types = ("qwen3_vl", "qwen3_vl_moe")
    configs = {"toy": small, "full": dense}
    processor_name, video_processor_name = "Qwen3VLProcessor", "Qwen3VLVideoProcessor"


class Qwen3VLMoeAdapter(Qwen3VLAdapter):
    """The same; random weights have experts."""

    configs = {"toy": small_experts, "full": experts}


def load(cfg: dict[str, Any]) -> Qwen3VLAdapter:
    """The model of conf/model/*.yaml; `architecture: moe` matters to random weights alone."""
    family = Qwen3VLMoeAdapter if cfg.get("architecture") == "moe" else Qwen3VLAdapter
    return family.load(cfg)
