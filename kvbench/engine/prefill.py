"""Prefill: one exact forward pass over the prompt, and what it leaves behind for the methods."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.errors import Unanswerable, UserError

EXTRAS = frozenset({"attention_sums", "query_basis"})


@dataclass
class Prefill:
    """Everything later stages need of a prompt. L layers, H KV heads, G query heads per KV head, N tokens."""

    key_stack: Tensor  # [L, H, N, d] post-RoPE
    value_stack: Tensor  # [L, H, N, d]
    window_queries: Tensor  # [L, H*G, w, d] post-RoPE, the last w = min(window, N) positions
    logits: Tensor  # [vocab] fp32, at the last position
    length: int  # N
    next_position: int  # logical position of the first generated token
    visual_mask: Tensor  # bool [N]
    scaling: list[float] | None = None  # per layer, what attention multiplied its logits by; None: d ** -0.5
    attention_sums: Tensor | None = None  # [L, H*G, N] column sums of the causal attention
    query_basis: Tensor | None = None  # [L, H, d, d] rotation of the prompt's queries, see query_basis()

    @property
    def keys(self) -> list[Tensor]:
        """Per layer [H, N, d]"""
        return list(self.key_stack)

    @property
    def values(self) -> list[Tensor]:
        """Per layer [H, N, d]"""
        return list(self.value_stack)


class Capture:
    """The attention state of a prefill: full causal attention that keeps what it sees."""

    def __init__(self, layers: int, window: int, extras: Collection[str] = ()):
        self.layers, self.window, self.extras = layers, window, frozenset(extras)
        self.keys = self.values = self.queries = self.sums = self.basis = None
        self.scaling = [0.0] * layers

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Causal attention over a single prompt: query [1, H*G, N, d] -> [1, N, H*G, d]."""
        if self.keys is None:
            self._allocate(query, key)
        self.keys[layer], self.values[layer], self.scaling[layer] = key[0], value[0], scaling
        self.queries[layer] = query[0, :, -self.queries.shape[2] :]
        if self.sums is not None:
            self.sums[layer] = column_sums(query[0], key[0], scaling)
        if self.basis is not None:
            self.basis[layer] = query_basis(query[0], key.shape[1])
        return causal_attention(query, key, value, scaling).transpose(1, 2)

    def _allocate(self, query: Tensor, key: Tensor) -> None:
        batch, query_heads, length, dim = query.shape
        if batch != 1:
            raise ValueError(f"prefill takes one prompt at a time, not a batch of {batch}")
        # One block for all layers: the methods read it stacked, and nothing is copied again.
        self.keys = key.new_empty(self.layers, key.shape[1], length, dim)
        self.values = torch.empty_like(self.keys)
        self.queries = query.new_empty(self.layers, query_heads, min(self.window, length), dim)
        if "attention_sums" in self.extras:
            self.sums = torch.empty(self.layers, query_heads, length, device=query.device)
        if "query_basis" in self.extras:
            self.basis = torch.empty(self.layers, key.shape[1], dim, dim, device=query.device)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """query [1, H*G, N, d], key and value [1, H, N, d] -> [1, H*G, N, d], no N x N matrix held.

    There is no mask, so that torch may use its flash kernel, which takes grouped heads as they are. On a GPU
    that kernel has no float32; the memory-efficient one, which has, wants a KV head for every query head.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and query.is_cuda and query.dtype == torch.float32:
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        groups = 1
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=groups > 1
    )


def column_sums(query: Tensor, key: Tensor, scaling: float, block: int = 256) -> Tensor:
    """[H*G, N] fp32: how much attention each position receives from all queries of a causal prompt.

    query [H*G, N, d], key [H, N, d]. Works in blocks of queries, so memory stays linear in N.
    """
    query_heads, length, dim = query.shape
    heads = key.shape[0]
    query = query.float().view(heads, -1, length, dim)
    key = key.float().unsqueeze(1)
    sums = torch.zeros(heads, query_heads // heads, length, device=query.device)
    for start in range(0, length, block):
        stop = min(start + block, length)
        logits = query[:, :, start:stop] @ key[:, :, :stop].transpose(-1, -2) * scaling
        future = torch.ones(stop - start, stop, dtype=torch.bool, device=query.device).triu(start + 1)
        sums[..., :stop] += logits.masked_fill_(future, float("-inf")).softmax(-1).sum(-2)
    return sums.view(query_heads, length)


def query_basis(query: Tensor, heads: int) -> Tensor:
    """[H, d, d] fp32: right singular vectors A of each KV head's queries (N positions x G query heads).

    Columns in descending order of the summed |q A|. query [H*G, N, d].
    """
    stacked = query.float().reshape(heads, -1, query.shape[-1])
    basis = torch.linalg.eigh(stacked.transpose(1, 2) @ stacked).eigenvectors
    order = (stacked @ basis).abs().sum(1).argsort(-1, descending=True)
    return basis.gather(2, order.unsqueeze(1).expand_as(basis))


def not_finite(adapter) -> UserError:
    """The error of logits that no token can be chosen by, in prefill or at a decode step."""
    return UserError(
        f"{adapter.name} produced NaN or infinite logits: load it in another dtype (e.g. dtype=float32)."
    )


@torch.inference_mode()
def prefill(adapter, inputs, *, window: int, extras: Collection[str] = ()) -> Prefill:
    """Run the prompt once, exactly, and capture its cache and its last `window` queries.

    extras: further things to capture, of `EXTRAS`. Raises UserError when the prompt is empty, longer than
    the model's context, or makes the model produce NaN.
    """
    unknown = set(extras) - EXTRAS
    if unknown:
        raise ValueError(f"prefill cannot capture {sorted(unknown)}")
    if inputs.length < 1:
        raise UserError("the prompt is empty: give the model at least one token.")
    if inputs.length > adapter.max_length:
        raise Unanswerable(
            f"the prompt has {inputs.length} tokens, more than the {adapter.max_length} that {adapter.name} "
            f"can read: shorten it or take a model with a longer context."
        )
    capture = Capture(adapter.layers, max(window, 1), extras)
    output = adapter.model(**inputs.tensors, use_cache=False, logits_to_keep=1, kv_state=capture)
    logits = output.logits[0, -1].float()
    if not bool(logits.isfinite().all()):
        raise not_finite(adapter)
    return Prefill(
        key_stack=capture.keys,
        value_stack=capture.values,
        window_queries=capture.queries,
        logits=logits,
        length=inputs.length,
        next_position=inputs.next_position,
        visual_mask=inputs.visual_mask,
        scaling=capture.scaling,
        attention_sums=capture.sums,
        query_basis=capture.basis,
    )
