"""What the engine needs to know about a model family."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvbench.checks import DTYPES
from kvbench.engine.attention import install
from kvbench.errors import UserError
from kvbench.models.checkpoint import check_layers
from kvbench.models.content import parts
from kvbench.models.literal import Literal

if TYPE_CHECKING:
    from kvbench.engine.compiled import CompiledStep


@dataclass
class Inputs:
    """One prompt, ready for the model."""

    tensors: dict[str, Tensor]  # keyword arguments of model.forward; input_ids is [1, N]
    length: int  # N
    next_position: int  # logical position of the first generated token: largest prompt position + 1
    visual_mask: Tensor  # bool [N], True at image tokens
    fitted: dict[str, int] = field(default_factory=dict)  # what was left out, see kvbench.benchmarks.fit


class Adapter:
    """A model behind one interface. Families override `prompt`, with M-RoPE `decode_positions` too."""

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        *,
        stop_ids: Collection[int],
        max_length: int | None = None,
        system: str | None = None,
        head_scores: str | Path | None = None,
        interleave: bool = False,
    ):
        """head_scores: JSON file of visual-head scores, the default of the sparsemm capacity.

        interleave: pictures go where the text marks them, see kvbench.models.content. Raises UserError for
        layers that are not full causal attention.
        """
        check_layers(name, model.config)
        install(model)
        model.eval().requires_grad_(False)
        text = model.config.get_text_config(decoder=True)
        self.name, self.model, self.tokenizer = name, model, tokenizer
        self.stop_ids, self.system, self.interleave = frozenset(stop_ids), system, interleave
        self.layers: int = text.num_hidden_layers
        self.query_heads: int = text.num_attention_heads
        self.kv_heads: int = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        self.head_dim: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.max_length: int = max_length or text.max_position_embeddings
        self._head_scores_path, self._head_scores = head_scores, None

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        return self.model.device

    @property
    def head_scores(self) -> Tensor | None:
        """[layers, query_heads] visual-head scores that ship with the model, if any."""
        if self._head_scores is None and self._head_scores_path is not None:
            from kvbench.methods.capacities.sparsemm import read_head_scores

            self._head_scores = read_head_scores(self._head_scores_path, self.layers, self.query_heads)
        return self._head_scores

    def messages(self, content: Any) -> list[dict[str, Any]]:
        """One user turn, after the configured system prompt if there is one."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": content}]

    def prepare(self, text: str, images: list, max_pixels: int | None = None) -> Inputs:
        """One user turn of pictures (or clips) and text, as everything the model's forward takes.

        max_pixels: a limit for each picture below the model's own, of models that have one (`pixels`).
        """
        limit = {} if max_pixels is None else {"max_pixels": max_pixels}
        return self.prompt(parts(text, images, self.interleave), **limit)

    def ids(self, text: str) -> list[int]:
        """Ids of a text as it is, without chat template; the tokenizer begins it as it begins every text."""
        literal = Literal([text], self.tokenizer)
        ids = self.tokenizer(literal.hide(text))["input_ids"]
        return literal.reveal(ids)[0] if literal else ids

    def bare(self, text: str) -> Inputs:
        """A prompt of a text alone, without chat template."""
        return self.text_inputs(self.ids(text))

    @property
    def pixels(self) -> tuple[int, int, int] | None:
        """Pixels of a picture that become one token, and the fewest and the most that it may have.

        None where the number of tokens is not that of the pixels.
        """
        return None

    def prompt(self, parts: list[Any]) -> Inputs:
        """One user turn of strings, PIL images and clips, in this order."""
        raise NotImplementedError

    def visual_grids(self, images: list) -> list[dict[str, Any]] | None:
        """Per image, how its visual tokens lie on it: rows x columns in reading order; None: not known.

        width, height: extent of the whole grid in units of the image's, above 1 where the image is padded.
        """
        return None

    def text_inputs(self, ids: list[int]) -> Inputs:
        """Inputs of a prompt without images and with ordinary positions."""
        return Inputs(
            tensors={"input_ids": torch.tensor([ids], dtype=torch.long, device=self.device)},
            length=len(ids),
            next_position=len(ids),
            visual_mask=torch.zeros(len(ids), dtype=torch.bool),
        )

    def decode_positions(self, positions: Tensor) -> Tensor:
        """[B] logical positions -> the position_ids the model takes for one new token: [B, 1]."""
        return positions.unsqueeze(1)

    def step(self, tokens: Tensor, position: int, state: Any) -> Tensor:
        """One decode step: tokens [B], all at one logical position -> logits [B, vocab]."""
        return self.forward(tokens, torch.full_like(tokens, position), state)

    def forward(self, tokens: Tensor, positions: Tensor, state: Any) -> Tensor:
        """The model's part of a step: tokens [B] at logical positions [B] -> logits [B, vocab]."""
        output = self.model(
            input_ids=tokens.unsqueeze(1),
            position_ids=self.decode_positions(positions),
            use_cache=False,
            kv_state=state,
        )
        return output.logits[:, -1]

    @functools.cached_property
    def compiled_step(self) -> CompiledStep:
        """`step` as one compiled graph, for caches whose shapes do not change."""
        from kvbench.engine.compiled import CompiledStep

        return CompiledStep(self)

    def text(self, tokens: list[int]) -> str:
        """Decoded text, special tokens skipped, otherwise as it is."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def resolve_device(cfg: dict[str, Any]) -> torch.device:
    """`device` of a model config: auto (a GPU if there is one), cpu, cuda, cuda:1."""
    wanted = cfg.get("device") or "auto"
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UserError(f"unknown device `{wanted}`: use auto, cpu or cuda.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"device={wanted} was asked for, but torch sees no GPU: use device=cpu or device=auto."
        )
    return device


def resolve_dtype(cfg: dict[str, Any]) -> torch.dtype:
    """`dtype` of a model config, float32 when it has none. It never depends on the device: answers differ."""
    wanted = cfg.get("dtype") or "float32"
    if wanted not in DTYPES:
        raise UserError(f"unknown dtype `{wanted}`: set model.dtype to one of {', '.join(DTYPES)}.")
    return getattr(torch, wanted)


def stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The end-of-sequence ids that `model.generate` would stop at."""
    ids = model.generation_config.eos_token_id
    ids = ids if ids is not None else tokenizer.eos_token_id
    return frozenset([ids] if isinstance(ids, int) else ids or [])
