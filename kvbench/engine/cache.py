"""The compact cache: what each branch, layer and KV head really kept, and the tokens generated since.

A row is one (branch, KV head). Rows of a layer that hold about equally many prompt entries lie together in
a bucket, padded to its longest row: [prompt entries | padding | generated]. So a branch with the full cache
does not pad the compressed ones, and storage stays close to what was promised. The G query heads of a row
attend as its G queries. Branches that refresh (kvbench.engine.refresh) have buckets of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.engine.prefill import Prefill
from kvbench.errors import UserError

PAD_SHARE = 0.75  # a bucket takes rows of at least this share of its longest row ...
PAD_ENTRIES = 16  # ... or at most this many entries shorter: small differences are cheaper padded than split
TAIL_CHUNK = 64  # generated entries are allocated in steps of this many


class Watcher(Protocol):
    """Branches that something is done to before they attend, and what is done."""

    branches: list[int]  # ascending, of the cache

    def before(self, layer: int, bucket: Bucket, end: int, query: Tensor, scaling: float) -> None:
        """Called once the step's own token is stored at end - 1; query [R, 1, G, d]. May rewrite entries."""

    def failures(self) -> dict[int, UserError]:
        """The branches, by cache number, that cannot go on, and why."""

    def retain(self, stay: list[int]) -> None:
        """All branches but these leave; the rest are renumbered 0, 1, ..."""


@dataclass
class Bucket:
    """R rows of one layer with S prompt slots each and room for generated tokens behind them."""

    rows: Tensor  # int64 [R] row numbers, ascending, in CPU memory
    keys: Tensor  # [R, S + room, d]
    values: Tensor  # [R, S + room, d]
    lengths: Tensor  # int64 [R] prompt entries of each row
    slots: int  # S
    mask: Tensor | None  # [R, 1, 1, S + room] additive; None when no row is padded
    watcher: Watcher | None = None  # when set, the rows are exactly those of its branches

    @property
    def room(self) -> int:
        """Generated tokens that fit."""
        return self.keys.shape[1] - self.slots

    def grow(self, extra: int) -> None:
        """Make room for `extra` more generated tokens."""
        self.keys = F.pad(self.keys, (0, 0, 0, extra))
        self.values = F.pad(self.values, (0, 0, 0, extra))
        if self.mask is not None:
            self.mask = F.pad(self.mask, (0, extra))


@dataclass(frozen=True)
class Order:
    """The rows of a layer as its buckets hold them, and the way back."""

    rows: Tensor  # int64 [rows]
    back: Tensor  # its inverse


def _order(buckets: list[Bucket], device: torch.device) -> Order | None:
    """None when the buckets hold the rows in their own order already."""
    rows = torch.cat([bucket.rows for bucket in buckets])
    if bool((rows.diff() > 0).all()):
        return None
    return Order(rows.to(device), rows.argsort().to(device))


class CompactCache:
    """The attention state of a decode: all branches of one sample, advancing together."""

    def __init__(
        self,
        prefill: Prefill,
        kept: list[list[list[Tensor]] | None],
        room: int = TAIL_CHUNK,
        watchers: Sequence[Watcher] = (),
    ):
        """kept: per branch the ascending positions per layer and KV head; None keeps the whole prompt.

        watchers: each takes the rows of its branches into buckets of their own.
        """
        self.layers, self.heads, self.prompt_length, _ = prefill.key_stack.shape
        self.branches = len(kept)
        self.tail = 0  # generated tokens that every branch holds
        room = max(1, min(room, TAIL_CHUNK))
        whole = torch.arange(self.prompt_length)
        self._buckets: list[list[Bucket]] = []
        self._watchers = list(watchers)
        for layer in range(self.layers):
            rows = [whole if b is None else b[layer][h] for b in kept for h in range(self.heads)]
            # The stacks may have moved to CPU memory; the cache never does.
            keys = prefill.key_stack[layer].to(prefill.logits.device)
            values = prefill.value_stack[layer].to(prefill.logits.device)
            self._buckets.append(_build_layer(keys, values, rows, self.heads, room, self._watchers))
        self._device = prefill.logits.device
        self._orders = [_order(buckets, self._device) for buckets in self._buckets]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Store each branch's new token, attend: query [B, H*G, 1, d], key [B, H, 1, d] -> [B, 1, H*G, d]."""
        batch, query_heads, _, dim = query.shape
        count = batch * self.heads
        query = query.reshape(count, 1, query_heads // self.heads, dim)
        key, value = key.reshape(count, dim), value.reshape(count, dim)
        order = self._orders[layer]
        if order is not None:  # rows of a bucket side by side, so that each bucket takes a slice
            query, key, value = query[order.rows], key[order.rows], value[order.rows]
        parts, start = [], 0
        for bucket in self._buckets[layer]:
            own = slice(start, start + len(bucket.rows))
            parts.append(self._attend_bucket(layer, bucket, query[own], key[own], value[own], scaling))
            start = own.stop
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        if order is not None:
            out = out[order.back]
        return out.view(batch, 1, query_heads, dim)

    def _attend_bucket(
        self, layer: int, bucket: Bucket, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        at = bucket.slots + self.tail
        if at >= bucket.keys.shape[1]:
            bucket.grow(TAIL_CHUNK)
        bucket.keys[:, at], bucket.values[:, at] = key, value
        if bucket.watcher is not None:
            bucket.watcher.before(layer, bucket, at + 1, query, scaling)
        mask = None if bucket.mask is None else bucket.mask[..., : at + 1]
        keys, values = bucket.keys[:, None, : at + 1], bucket.values[:, None, : at + 1]
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)

    def advance(self) -> None:
        """One token has been stored in every layer."""
        self.tail += 1

    def retain(self, branches: list[int]) -> None:
        """Drop all branches but these (current numbers, ascending); they are renumbered 0, 1, ..."""
        keep = torch.zeros(self.branches, dtype=torch.bool)
        keep[branches] = True
        keep = keep.repeat_interleave(self.heads)
        renumber = keep.cumsum(0) - 1
        for layer, buckets in enumerate(self._buckets):
            self._buckets[layer] = [
                b for bucket in buckets if (b := _retain(bucket, keep, renumber)) is not None
            ]
            self._orders[layer] = _order(self._buckets[layer], self._device)
        for watcher in self._watchers:
            watcher.retain(branches)
        self.branches = len(branches)

    def stored_keys(self, layer: int) -> Tensor:
        """[rows, entries, d] keys of a layer, the token being written included, when no row is padded."""
        (bucket,) = self._buckets[layer]
        if bucket.mask is not None:
            raise ValueError("rows of unequal length have no common tensor")
        return bucket.keys[:, : bucket.slots + self.tail + 1]

    @property
    def nbytes(self) -> int:
        """Memory held, padding and unused room included."""
        return sum(2 * b.keys.nbytes for layer in self._buckets for b in layer)


def plan_buckets(lengths: Tensor) -> list[Tensor]:
    """Group rows by length: a group's shortest row is not much shorter than its longest. Rows ascend."""
    order = lengths.argsort(descending=True, stable=True)
    groups, start, ranked = [], 0, lengths[order].tolist()
    for i, length in enumerate(ranked):
        if length < min(PAD_SHARE * ranked[start], ranked[start] - PAD_ENTRIES):
            groups.append(order[start:i])
            start = i
    groups.append(order[start:])
    return [group.sort().values for group in groups]


def _build_layer(
    keys: Tensor, values: Tensor, rows: list[Tensor], heads: int, room: int, watchers: Sequence[Watcher] = ()
) -> list[Bucket]:
    """Gather the kept entries of one layer from its full cache [H, N, d]."""
    _, length, dim = keys.shape
    lengths = torch.tensor([len(row) for row in rows])
    groups: list[tuple[Tensor, Watcher | None]] = []
    free = torch.ones(len(rows), dtype=torch.bool)
    for watcher in watchers:
        own = torch.tensor([b * heads + h for b in watcher.branches for h in range(heads)])
        free[own] = False
        groups.append((own, watcher))
    rest = free.nonzero().flatten()
    if len(rest):
        groups += [(rest[group], None) for group in plan_buckets(lengths[rest])]
    flat_keys, flat_values = keys.reshape(-1, dim), values.reshape(-1, dim)
    buckets = []
    for group, watcher in groups:
        sizes = lengths[group]
        slots = int(sizes.max())
        filled = torch.arange(slots) < sizes.unsqueeze(1)  # [R, S]
        source = ((group % heads) * length).unsqueeze(1).repeat(1, slots)
        source[filled] += torch.cat([rows[row] for row in group.tolist()]).cpu()
        source = source.flatten().to(keys.device)
        stored = []
        for flat in (flat_keys, flat_values):
            # Room is written before it is read; padding, which is masked, holds some entry of the prompt.
            buffer = flat.new_empty(len(group), slots + room, dim)
            buffer[:, :slots] = flat.index_select(0, source).view(len(group), slots, dim)
            stored.append(buffer)
        mask = None
        if not bool(filled.all()):
            mask = torch.zeros(len(group), 1, 1, slots + room, dtype=keys.dtype)
            mask[:, 0, 0, :slots].masked_fill_(~filled, float("-inf"))
            mask = mask.to(keys.device)
        buckets.append(Bucket(group, *stored, sizes, slots, mask, watcher))
    return buckets


def _retain(bucket: Bucket, keep: Tensor, renumber: Tensor) -> Bucket | None:
    """The bucket without the rows of dropped branches; None when nothing is left."""
    stay = keep[bucket.rows]
    if not bool(stay.any()):
        return None
    rows = renumber[bucket.rows[stay]]
    if bool(stay.all()):
        bucket.rows = rows
        return bucket
    index = stay.nonzero().flatten()
    at = index.to(bucket.keys.device)
    mask = None if bucket.mask is None else bucket.mask[at]
    keys, values = bucket.keys[at], bucket.values[at]
    return Bucket(rows, keys, values, bucket.lengths[index], bucket.slots, mask, bucket.watcher)
