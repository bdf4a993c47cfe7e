"""The ragged cache: every (branch, KV head) is a sequence of its own, and no decode step changes a shape.

A row is one (branch, KV head), W entries wide: [prompt entries | generated | free]. Generated entries follow
a row's own last prompt entry, and how far each row has come is counted on the device, so that a step needs
neither a new tensor nor a word from the host. Attention is flash-attention with one length per row where it
can run, else torch's attention over the whole width with a mask.

Branches that keep the whole prompt have rows of their own width, so they do not pad the others. All other
rows share the width of the longest one: more memory than the compact cache, fewer and equal steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.engine import flash
from kvbench.engine.prefill import Prefill

ALIGN = 16  # widths are multiples of it: masks that torch's kernels read without a copy

KeptSets = list[list[Tensor]] | None  # of one branch; None keeps the whole prompt
Allocate = Callable[[str, tuple[int, ...], Tensor], Tensor]  # (name, shape, like) -> zeros


def zeros(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A new tensor of zeros with the dtype and device of `like`."""
    return like.new_zeros(shape)


def width_for(entries: int, static: bool) -> int:
    """Entries that a row is given which will hold this many."""
    if static:
        return max(ALIGN, 1 << (entries - 1).bit_length())
    return -(-entries // ALIGN) * ALIGN


def ragged_bytes(prefill: Prefill, kept: Sequence[KeptSets], room: int, static: bool) -> list[int]:
    """Bytes that each branch takes when all are in one cache; in smaller groups they take no more."""
    layers, heads, length, dim = prefill.key_stack.shape
    entry = 2 * layers * heads * dim * prefill.key_stack.element_size()
    full, rest = (entry * width_for(n + room, static) for n in (length, _longest(kept)))
    return [full if sets is None else rest for sets in kept]


def _longest(kept: Sequence[KeptSets]) -> int:
    """Entries of the longest row among the branches that do not keep everything."""
    return max((len(row) for sets in kept if sets is not None for layer in sets for row in layer), default=0)


class Rows:
    """R rows of one width, in every layer."""

    def __init__(self, prefill: Prefill, kept: Sequence[KeptSets], width: int, name: str, allocate: Allocate):
        """kept: the branches, each with as many rows as there are KV heads. name: for `allocate`."""
        layers, heads, length, dim = prefill.key_stack.shape
        like = prefill.logits.new_empty(0, dtype=prefill.key_stack.dtype)
        whole = torch.arange(length)
        self.keys: list[Tensor] = []  # per layer [R, W, d]; zeros where nothing is written yet, as a
        self.values: list[Tensor] = []  # masked NaN would still be one
        lengths = []
        for layer in range(layers):
            rows = [whole if b is None else b[layer][h].cpu() for b in kept for h in range(heads)]
            sizes = torch.tensor([len(row) for row in rows])
            source = torch.cat([row + (r % heads) * length for r, row in enumerate(rows)]).to(like.device)
            target = (torch.arange(width) < sizes.unsqueeze(1)).flatten().nonzero().flatten().to(like.device)
            for part, stack in (("keys", prefill.key_stack), ("values", prefill.value_stack)):
                block = allocate(f"{name}.{part}.{layer}", (len(rows), width, dim), like)
                flat = stack[layer].to(like.device).reshape(-1, dim)
                block.view(-1, dim).index_copy_(0, target, flat.index_select(0, source))
                getattr(self, part).append(block)
            lengths.append(sizes)
        self.lengths = torch.stack(lengths)  # int64 [L, R] prompt entries of each row, in CPU memory
        self.at = self.lengths.to(like.device, copy=True)  # int64 [L, R] where each row's next entry goes
        self.ends = (self.at + 1).int()  # and how many entries it then attends to
        self.index = torch.arange(len(rows), device=like.device)
        self.slots = torch.arange(width, device=like.device)
        self.flash = flash.usable(like.device, like.dtype, dim)

    @property
    def count(self) -> int:
        """R"""
        return len(self.keys[0])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Store a token per row, attend: query [R, 1, G, d], key and value [R, d] -> [R, 1, G, d]."""
        keys, values, ends = self.keys[layer], self.values[layer], self.ends[layer]
        where = self.index, self.at[layer]
        keys.index_put_(where, key)
        values.index_put_(where, value)
        if self.flash:
            return flash.attend(query, keys, values, ends, scaling)
        mask = (self.slots < ends.unsqueeze(1))[:, None, None]
        return F.scaled_dot_product_attention(
            query, keys.unsqueeze(1), values.unsqueeze(1), attn_mask=mask, scale=scaling
        )

    def advance(self) -> None:
        """A token has been stored in every layer."""
        self.at += 1
        self.ends += 1

    def select(self, rows: Tensor) -> None:
        """Keep only these rows (int64, in CPU memory)."""
        self.lengths = self.lengths[:, rows]
        rows = rows.to(self.index.device)
        self.at, self.ends = self.at[:, rows], self.ends[:, rows]
        for layer in range(len(self.keys)):  # one after another: no more than one is held twice
            self.keys[layer] = self.keys[layer][rows]
            self.values[layer] = self.values[layer][rows]
        self.index = self.index[: len(rows)]


class RaggedCache:
    """The attention state of a decode without watchers: all branches of one sample, advancing together.

    The batch has `size` places; branch i sits at places[i]. With `static` shapes never change: a branch
    that ends keeps its place, which computes what nobody reads, and widths are powers of two, so that
    samples of similar length have equal shapes. Else it leaves the batch.
    """

    def __init__(
        self,
        prefill: Prefill,
        kept: Sequence[KeptSets],
        room: int,
        static: bool = False,
        allocate: Allocate = zeros,
    ):
        """kept: per branch the ascending positions per layer and KV head; None keeps the whole prompt.

        room: generated tokens that will be stored. allocate: gives zeroed tensors.
        """
        self.layers, self.heads, length, _ = prefill.key_stack.shape
        self.static, self.tail, self.size = static, 0, len(kept)
        full = [i for i, sets in enumerate(kept) if sets is None]
        rest = [i for i, sets in enumerate(kept) if sets is not None]
        self.groups: list[Rows] = []
        for name, own, longest in (("full", full, length), ("rest", rest, _longest(kept))):
            if own:
                width = width_for(longest + max(room, 1), static)
                self.groups.append(Rows(prefill, [kept[i] for i in own], width, name, allocate))
        self._device = prefill.logits.device
        self.places = torch.tensor(full + rest).argsort()  # int64 [branches], in CPU memory
        self._at = self.places.to(self._device)

    @property
    def branches(self) -> int:
        """Branches that go on."""
        return len(self.places)

    def spread(self, tokens: Tensor) -> Tensor:
        """[branches] -> [size]: to each branch's place; free places get token 0."""
        return tokens.new_zeros(self.size).index_copy_(0, self._at, tokens)

    def pick(self, output: Tensor) -> Tensor:
        """[size, ...] -> [branches, ...]: from each branch's place."""
        return output.index_select(0, self._at)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Store each place's new token, attend: query [B, H*G, 1, d], key [B, H, 1, d] -> [B, 1, H*G, d]."""
        batch, query_heads, _, dim = query.shape
        count = batch * self.heads
        query = query.reshape(count, 1, query_heads // self.heads, dim)
        key, value = key.reshape(count, dim), value.reshape(count, dim)
        parts, start = [], 0
        for group in self.groups:
            own = slice(start, start + group.count)
            parts.append(group.attend(layer, query[own], key[own], value[own], scaling))
            start = own.stop
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.view(batch, 1, query_heads, dim)

    def advance(self) -> None:
        """One token has been stored in every layer."""
        self.tail += 1
        for group in self.groups:
            group.advance()

    def retain(self, branches: list[int]) -> None:
        """Drop all branches but these (current numbers, ascending); they are renumbered 0, 1, ..."""
        self.places = self.places[branches]
        if not self.static:
            stay, start, groups = self.places.sort().values, 0, []
            for group in self.groups:
                stop = start + group.count // self.heads
                own = stay[(stay >= start) & (stay < stop)] - start
                if len(own):
                    group.select((own.unsqueeze(1) * self.heads + torch.arange(self.heads)).flatten())
                    groups.append(group)
                start = stop
            self.groups = groups
            self.places, self.size = self.places.argsort().argsort(), len(stay)
        self._at = self.places.to(self._device)

    @property
    def nbytes(self) -> int:
        """Memory held, padding and free room included."""
        return sum(2 * keys.nbytes for group in self.groups for keys in group.keys)
