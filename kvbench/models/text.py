"""Adapter of causal language models without eyes, e.g. SmolLM2."""

from __future__ import annotations

from typing import Any

from kvbench.errors import UserError
from kvbench.models.base import Adapter, Inputs, resolve_device, resolve_dtype, stop_tokens

LOCAL = "embedded"  # `weights` of the language model that `make setup` converts


class TextAdapter(Adapter):
    """One user turn of text through the tokenizer's chat template."""

    def prepare(self, text: str, images: list) -> Inputs:
        if images:
            raise UserError(f"model {self.name} reads text only, but the sample has {len(images)} image(s).")
        ids = self.tokenizer.apply_chat_template(
            self.messages(text), tokenize=True, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        return self.text_inputs(ids)


def load(cfg: dict[str, Any]) -> TextAdapter:
    """The model of conf/model/*.yaml: `weights` is a hub id, a folder, or `embedded` (see `make setup`)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, revision = cfg.get("weights") or LOCAL, cfg.get("revision")
    if source == LOCAL:
        from kvbench.embedded import language

        source, revision = str(language.folder()), None
    device = resolve_device(cfg)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
        model = AutoModelForCausalLM.from_pretrained(
            source, revision=revision, dtype=resolve_dtype(cfg, device)
        )
    except OSError as error:
        raise UserError(
            f"cannot load {source}: download it first or set model.weights to a folder that holds it."
        ) from error
    return TextAdapter(
        cfg["name"],
        model.to(device),
        tokenizer,
        stop_ids=stop_tokens(model, tokenizer),
        max_length=cfg.get("max_length"),
        system=cfg.get("system_prompt"),
        head_scores=cfg.get("head_scores"),
    )
