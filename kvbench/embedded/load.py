"""Puts the embedded model together: language model, tower and adapter as one stock LLaVA in float32."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlavaConfig, LlavaForConditionalGeneration

from kvbench.embedded import language, prompt, tower
from kvbench.embedded import vocabulary as V
from kvbench.errors import UserError

WEIGHTS = Path(__file__).resolve().parent / "weights"


def tokenizer(folder: Path | None = None):
    """The language model's tokenizer."""
    return AutoTokenizer.from_pretrained(folder or language.folder())


def base(dtype: torch.dtype = torch.float32):
    """The bare language model (a LlamaForCausalLM) in evaluation mode."""
    return AutoModelForCausalLM.from_pretrained(language.folder(), dtype=dtype).eval()


def class_embeddings(embedding: torch.Tensor, token_ids: tuple[int, ...]) -> torch.Tensor:
    """What the projector mixes: the frozen embedding of every class's token, [V.SIZE, hidden]."""
    return embedding[torch.tensor(token_ids)]


def load(
    weights: Path | None = None, *, trained: bool = True
) -> tuple[LlavaForConditionalGeneration, object]:
    """The model and its tokenizer, ready for greedy generation.

    Args:
        weights: folder with ``tower.safetensors`` and ``adapter/`` (default: the shipped one).
        trained: False leaves the tower random and the language model bare, for tests of the plumbing.

    Raises:
        UserError: weights or language model are missing.
    """
    weights = weights or WEIGHTS
    if trained:
        _check(weights)
    words = tokenizer()
    text = base()
    if trained:
        text = merged(text, weights / "adapter")
    tower.register()
    config = LlavaConfig(
        vision_config=tower.TileConfig(),
        text_config=text.config,
        image_token_index=prompt.special(words, prompt.IMAGE),
        projector_hidden_act="linear",
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        multimodal_projector_bias=False,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlavaForConditionalGeneration(config)
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.tie_weights()
    if trained:
        state = {
            name: value.float() if value.is_floating_point() else value
            for name, value in load_file(weights / "tower.safetensors").items()
        }
        model.model.vision_tower.load_state_dict(state)
    projector = model.model.multi_modal_projector
    with torch.no_grad():
        table = class_embeddings(text.get_input_embeddings().weight, V.token_ids(words))
        projector.linear_1.weight.copy_(table.T)
        projector.linear_2.weight.copy_(torch.eye(table.shape[1]))
    end = prompt.special(words, prompt.END)
    model.generation_config = type(model.generation_config)(
        do_sample=False, eos_token_id=end, pad_token_id=end, bos_token_id=text.config.bos_token_id
    )
    return model.eval(), words


def _check(weights: Path) -> None:
    """Raise UserError where a part of the trained weights is missing."""
    if not (weights / "tower.safetensors").exists():
        if weights != WEIGHTS:
            raise UserError(
                f"{weights} holds no tower.safetensors: set model.weights=shipped, or to a folder that "
                "`python scripts/embedded/train.py` wrote."
            )
        raise UserError(
            f"the embedded model's weights are missing from {weights}: restore them or run `make embedded`."
        )
    if not (weights / "adapter" / "adapter_model.safetensors").exists():
        raise UserError(
            f"the adapter is missing from {weights / 'adapter'}: restore it or run `make embedded`"
        )


def merged(text, adapter: Path):
    """The language model with the adapter's weights added in float32.

    Raises:
        UserError: the adapter does not fit this language model.
    """
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(text, str(adapter)).float().merge_and_unload().eval()
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the adapter in {adapter} does not fit the language model: run `make embedded`"
        ) from error
