"""How the branches of a sample are stored and advanced: compact, or ragged and perhaps compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from kvbench import memory
from kvbench.engine import flash
from kvbench.engine.cache import CompactCache, Watcher
from kvbench.engine.prefill import Prefill
from kvbench.engine.ragged import KeptSets, RaggedCache, ragged_bytes, zeros
from kvbench.engine.waves import FREE_SHARE, branch_bytes, default_limit

Step = Callable[[Tensor, int], Tensor]  # (tokens [branches], logical position) -> logits [branches, vocab]


class Compact:
    """Storage close to what was promised, and branches that refresh; shapes change at every step."""

    def __init__(self, adapter: Any, prefill: Prefill, new_tokens: int):
        self.adapter, self.prefill, self.new_tokens = adapter, prefill, new_tokens

    def sizes(self, kept: Sequence[KeptSets]) -> list[int]:
        """Bytes that each branch takes at its end."""
        return [branch_bytes(self.prefill, sets, self.new_tokens) for sets in kept]

    def limit(self) -> int:
        """Bytes that may be taken at once."""
        return default_limit(self.prefill.logits.device)

    def start(self, kept: Sequence[KeptSets], watchers: Sequence[Watcher]) -> tuple[CompactCache, Step]:
        """The cache of branches that are to decode together, and what advances them by a token."""
        cache = CompactCache(self.prefill, kept, self.new_tokens - 1, watchers)
        return cache, lambda tokens, position: self.adapter.step(tokens, position, cache)

    def give_back(self) -> None:
        """Free what a try that ran out of memory has left."""
        memory.give_back()


class Ragged(Compact):
    """Steps of equal shape and one length per row; without watchers. compiled: the step as one graph."""

    def __init__(self, adapter: Any, prefill: Prefill, new_tokens: int, compiled: bool):
        super().__init__(adapter, prefill, new_tokens)
        self.compiled = compiled

    def sizes(self, kept: Sequence[KeptSets]) -> list[int]:
        return ragged_bytes(self.prefill, kept, max(self.new_tokens - 1, 1), self.compiled)

    def limit(self) -> int:
        held = self.adapter.compiled_step.arena.nbytes if self.compiled else 0
        return super().limit() + int(FREE_SHARE * held)  # the cache is built in what is held

    def start(self, kept: Sequence[KeptSets], watchers: Sequence[Watcher]) -> tuple[RaggedCache, Step]:
        allocate = self.adapter.compiled_step.arena.zeros if self.compiled else zeros
        cache = RaggedCache(self.prefill, kept, self.new_tokens - 1, self.compiled, allocate)
        forward = self.adapter.compiled_step if self.compiled else self.adapter.step
        return cache, lambda tokens, position: cache.pick(forward(cache.spread(tokens), position, cache))

    def give_back(self) -> None:
        release(self.adapter)
        super().give_back()


def release(adapter: Any) -> bool:
    """Free what the compiled step keeps from one sample to the next; False when it keeps nothing."""
    held = "compiled_step" in vars(adapter) and adapter.compiled_step.arena.nbytes > 0
    if held:
        adapter.compiled_step.arena.clear()
    return held


def choose(
    adapter: Any, prefill: Prefill, new_tokens: int, refreshing: bool, cache: str, compiled: bool
) -> Compact:
    """The path of one sample. refreshing: some branch is watched, which only the compact cache allows.

    cache: compact, ragged, or auto: ragged where the step is compiled or flash-attention can run.
    """
    if cache not in ("auto", "compact", "ragged"):
        raise ValueError(f"unknown cache {cache!r}")
    stack = prefill.key_stack
    able = compiled or flash.usable(prefill.logits.device, stack.dtype, stack.shape[-1])
    if refreshing or cache == "compact" or (cache == "auto" and not able):
        return Compact(adapter, prefill, new_tokens)
    return Ragged(adapter, prefill, new_tokens, compiled)
