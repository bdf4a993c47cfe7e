"""The one attention function that kvbench gives to transformers.

transformers calls it in every decoder layer after RoPE (and QK-norm), so it sees the true queries and keys
of any model family. What it does is decided by the state object that the caller passes through the forward
call, as `model(..., kv_state=state)`: a capture during prefill, a compact cache during decode. There is no
global state, and the phase is never guessed from shapes.

No mask function is registered: transformers then builds no mask and passes None, and the state owns masking.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from kvbench.errors import SetupError

NAME = "kvbench"
# What transformers may hand over that changes attention, and that no state here knows of.
CHANGES = {
    "sliding_window": "a sliding window",
    "softcap": "a soft cap on its logits",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "position_bias": "a bias by position",
    "indices": "a choice of positions of its own",
    "block_indices": "a choice of blocks of its own",
}


class State(Protocol):
    """One forward call's attention: a prefill capture or a compact cache."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """query [B, H*G, q, d], key and value [B, H, q, d] of the new tokens -> [B, q, H*G, d]."""


def attention(
    module, query, key, value, attention_mask, scaling=None, kv_state: State | None = None, **kwargs
):
    """The function registered with transformers: hands queries, keys and values to the call's state."""
    if kv_state is None:
        raise RuntimeError(
            "this model's attention is kvbench's: run it through kvbench.engine, or inside plain(model)"
        )
    if attention_mask is not None:
        raise RuntimeError("kvbench masks attention itself, but the model passed a mask of its own")
    unheard = [f"{what} ({name})" for name, what in CHANGES.items() if kwargs.get(name) is not None]
    if unheard:
        raise SetupError(
            f"the model's attention has {' and '.join(unheard)}, which kvbench would drop in silence: take a "
            "model of plain causal attention."
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return kv_state.attend(module.layer_idx, query, key, value, scaling), None


def install(model) -> None:
    """Make the text layers of a model use kvbench's attention; a vision tower keeps its own."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    model.config.get_text_config(decoder=True)._attn_implementation = NAME


@contextmanager
def plain(model, implementation: str = "sdpa") -> Iterator[None]:
    """Run the model with transformers' own attention inside the block, e.g. for `model.generate`."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = before
