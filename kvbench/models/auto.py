"""Any checkpoint of transformers: its own processor and chat template, and nothing guessed in silence.

Positions, visual tokens and the place of the next token are read off model and processor. The first prompt
is answered by ``model.generate`` as well: unless both say the same, the model is refused.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from kvbench.engine.attention import plain
from kvbench.errors import SetupError, UserError, first_line
from kvbench.models.base import Adapter, Inputs
from kvbench.models.checkpoint import read_config
from kvbench.models.text import TextAdapter
from kvbench.models.text import load as load_text
from kvbench.models.vision import VisionAdapter

CHECKED = 8  # tokens of the first answer that must be those of model.generate
CLOSE = 0.03  # share of the logits' range by which those of 16 bits may differ


class Checked(Adapter):
    """An adapter whose first prompt is held against transformers' own generation."""

    checked = False

    def prepare(self, text: str, images: list, max_pixels: int | None = None) -> Inputs:
        inputs = super().prepare(text, images, max_pixels)
        if not self.checked:
            check(self, inputs)
            self.checked = True
        return inputs


class AutoText(Checked, TextAdapter):
    """A causal language model that kvbench has no adapter for."""


class AutoVision(Checked, VisionAdapter):
    """A model of pictures and text that kvbench has no adapter for."""

    types = ()
    takes_video = False

    def _rope(self) -> Any:
        """What works out positions of several dimensions (M-RoPE); None for a model with ordinary ones."""
        return getattr(getattr(self.model, "model", None), "get_rope_index", None)

    def add_positions(self, inputs: Inputs) -> None:
        if (index := self._rope()) is None:
            return
        wanted = inspect.signature(index).parameters
        known = {key: value for key, value in inputs.tensors.items() if key in wanted}
        positions, _ = index(**known)
        inputs.next_position = int(positions.max()) + 1
        inputs.tensors["position_ids"] = positions

    def decode_positions(self, positions: torch.Tensor) -> torch.Tensor:
        """[B] -> [B, 1]; with M-RoPE [3, B, 1], the same in every dimension."""
        if self._rope() is None:
            return super().decode_positions(positions)
        return positions.view(1, -1, 1).expand(3, -1, -1)


@torch.inference_mode()
def check(adapter: Adapter, inputs: Inputs) -> None:
    """Raise UserError unless kvbench, keeping everything, answers a prompt as ``model.generate`` does.

    In float32 the tokens are equal; in 16 bits, where sums are rounded in another order, the logits close.
    """
    own = {key: value for key, value in inputs.tensors.items() if key != "position_ids"}
    try:
        with plain(adapter.model):
            if adapter.model.dtype == torch.float32:
                greedy = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0}
                out = adapter.model.generate(**own, max_new_tokens=CHECKED, **greedy)
                theirs = out[0, inputs.length :].tolist()
            else:
                logits = adapter.model(**own, use_cache=False).logits[0, -1].float()
        if adapter.model.dtype == torch.float32:
            same, how = _tokens(adapter, inputs) == theirs, "its first tokens are not model.generate's"
        else:
            gap = (_logits(adapter, inputs) - logits).abs().max()
            same, how = gap <= CLOSE * (logits.max() - logits.min()), "its logits are not the model's own"
    except UserError:
        raise
    except Exception as error:  # of a forward that does not pass attention's state on, or masks by itself
        same, how = False, f"{type(error).__name__}: {first_line(error)}"
    if not same:
        raise SetupError(
            f"kvbench does not understand model {adapter.name} ({type(adapter.model).__name__}): with all "
            f"entries kept, {how}. It needs an adapter of its own, see docs/extending.md."
        )


def _tokens(adapter: Adapter, inputs: Inputs) -> list[int]:
    from kvbench.engine.generate import generate
    from kvbench.methods import build

    (answer,) = generate(adapter, inputs, [build({"name": "fullkv"}, None)], max_new_tokens=CHECKED)
    return answer.tokens


def _logits(adapter: Adapter, inputs: Inputs) -> torch.Tensor:
    from kvbench.engine.prefill import prefill

    return prefill(adapter, inputs, window=1).logits


def load(cfg: dict[str, Any]) -> Adapter:
    """The model of `weights`, a hub id or a folder, with the adapter of its family where there is one.

    Raises UserError for what cannot be compressed: other attention than causal, no attention, an encoder.
    """
    from kvbench.models import family

    weights = cfg.get("weights")
    if not weights or weights == "random":
        raise UserError("model=auto reads a checkpoint: set model.weights to a folder or hub id.")
    config = read_config(cfg["name"], weights, cfg.get("revision"))
    refuse(cfg["name"], config)
    if (known := family(config)) is not None:
        return known.load(cfg)
    if _sees(config):
        return AutoVision.load(cfg)
    return load_text(cfg, AutoText)


def refuse(name: str, config: Any) -> None:
    """Raise UserError for architectures that have no growing cache of keys and values in every layer."""
    text = config.get_text_config(decoder=True)
    why = None
    if getattr(config, "is_encoder_decoder", False):
        why = "has an encoder"
    elif getattr(text, "cross_attention_layers", None):
        why = "reads pictures by cross-attention"
    elif not getattr(text, "num_attention_heads", None):
        why = "has no attention heads"
    if why:
        raise UserError(
            f"model {name} ({config.model_type}) {why}, which kvbench cannot compress: take a decoder whose "
            "layers all attend causally."
        )


def _sees(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as known

    return config.model_type in known
