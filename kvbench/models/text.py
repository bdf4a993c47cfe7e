"""Adapter of causal language models without eyes: SmolLM2, Mistral, Llama 3.1."""

from __future__ import annotations

from typing import Any

from kvbench.errors import UserError
from kvbench.models import toy
from kvbench.models.base import Adapter, Inputs, resolve_device, resolve_dtype, stop_tokens
from kvbench.models.checkpoint import check_chat, load_weights, read_config, read_tokenizer
from kvbench.models.literal import Literal

LOCAL = "embedded"  # `weights` of the language model that `make setup` converts


class TextAdapter(Adapter):
    """One user turn of text through the tokenizer's chat template, or as it is (`chat`: none)."""

    def __init__(self, *args: Any, chat: str | None = None, **kwargs: Any):
        """chat: none gives the model the text alone, a system prompt before it; None uses the template."""
        super().__init__(*args, **kwargs)
        if chat not in (None, "none"):
            raise UserError(f"model.chat must be null (the chat template) or none, not {chat!r}.")
        self.chat = chat
        if chat is None:
            check_chat(self.name, self.tokenizer, self.system, "or model.chat=none for bare text")

    def prompt(self, parts: list[Any]) -> Inputs:
        visuals = sum(not isinstance(part, str) for part in parts)
        if visuals:
            raise UserError(f"model {self.name} reads text only, but the sample has {visuals} image(s).")
        text = "".join(parts)
        if self.chat == "none" and self.system is not None:
            text = f"{self.system}\n\n{text}"
        if self.chat == "none":
            return self.bare(text)
        literal = Literal([text], self.tokenizer)
        ids = self.tokenizer.apply_chat_template(
            self.messages(literal.hide(text)), tokenize=True, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        return self.text_inputs(literal.reveal(ids)[0] if literal else ids)


def mistral(words: Any):
    """Mistral-7B-Instruct-v0.2: no sliding window."""
    from transformers import MistralConfig

    rope = {"rope_type": "default", "rope_theta": 1e6}
    return MistralConfig(
        vocab_size=32000,
        max_position_embeddings=32768,
        sliding_window=None,
        rope_parameters=rope,
        eos_token_id=words.eos_token_id,
    )


def llama(words: Any):
    """Llama-3.1-8B-Instruct."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_parameters=_llama_rope(5e5, 8192),
        eos_token_id=words.eos_token_id,
    )


def small_mistral(words: Any):
    """Mistral's structure in miniature."""
    from transformers import MistralConfig

    rope = {"rope_type": "default", "rope_theta": 1e4}
    return MistralConfig(
        **toy.TEXT, head_dim=16, vocab_size=len(words), sliding_window=None, rope_parameters=rope
    )


def small_llama(words: Any):
    """Llama's structure in miniature, its scaled positions included."""
    from transformers import LlamaConfig

    return LlamaConfig(**toy.TEXT, vocab_size=len(words), rope_parameters=_llama_rope(1e4, 256))


def _llama_rope(theta: float, trained: int) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": trained,
    }


CONFIGS = {
    "mistral": {"toy": small_mistral, "full": mistral},
    "llama": {"toy": small_llama, "full": llama},
}


def load(cfg: dict[str, Any], adapter: type[TextAdapter] = TextAdapter) -> TextAdapter:
    """The model of conf/model/*.yaml.

    `weights` is a hub id, a folder, `embedded` (see `make setup`), or `random` (with `architecture`, `size`
    and `seed`). Raises UserError for a missing or unfit checkpoint, before its weights are loaded.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name, source, revision = cfg["name"], cfg.get("weights") or LOCAL, cfg.get("revision")
    device, dtype = resolve_device(cfg), resolve_dtype(cfg)
    if source == "random":
        words = toy.tokenizer()
        sizes = toy.choose(CONFIGS, cfg.get("architecture") or "llama", name)
        config = toy.choose(sizes, cfg.get("size"), name)(words)
        model = toy.randomly(AutoModelForCausalLM, config, cfg, device, dtype)
    else:
        if source == LOCAL:
            from kvbench.embedded import language

            source, revision = str(language.folder()), None
        config = read_config(name, source, revision)
        words = read_tokenizer(AutoTokenizer, source, revision)
        model = load_weights(AutoModelForCausalLM, config, source, revision, dtype=dtype)
    return adapter(
        name,
        model.to(device),
        words,
        stop_ids=stop_tokens(model, words),
        max_length=cfg.get("max_length"),
        system=cfg.get("system_prompt"),
        chat=cfg.get("chat"),
        head_scores=cfg.get("head_scores"),
    )
