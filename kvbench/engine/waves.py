"""Waves: branches that do not fit into memory together decode one group after another.

Prefill and selection happened once, so waves change time and memory. In float32 they change no answer; in
bfloat16 and float16 sums are rounded as the batch's shape has it, and a near tie may fall otherwise, as
after any change of the batch (which methods run together, a resumed run).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvbench import memory
from kvbench.engine.prefill import Prefill

FREE_SHARE = 0.5  # of the free memory; the rest is for padding, a step's activations and rebuilt buckets


def branch_bytes(prefill: Prefill, kept: list[list[torch.Tensor]] | None, new_tokens: int) -> int:
    """Bytes of the keys and values that a branch holds at its end, padding not counted."""
    layers, heads, length, dim = prefill.key_stack.shape
    entries = layers * heads * (length if kept is None else 0)
    entries += sum(len(head) for layer in kept or () for head in layer)
    entries += layers * heads * new_tokens
    return 2 * entries * dim * prefill.key_stack.element_size()


def default_limit(device: torch.device) -> int:
    """Bytes that the branches of one wave may hold, from what the device has free now."""
    return int(FREE_SHARE * memory.free_bytes(device))


def first_wave(sizes: Sequence[int], limit: float) -> int:
    """How many branches from the front fit within `limit` bytes; at least one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > limit:
            return count
    return len(sizes)


def in_waves(
    sizes: Sequence[int],
    limit: float,
    run: Callable[[list[int]], None],
    log: Callable[[str], None],
    give_back: Callable[[], None] = memory.give_back,
) -> None:
    """Call run(branches) for waves of at most `limit` bytes, the largest branches (FullKV) first.

    sizes: bytes per branch. When a wave runs out of memory, that is said, the limit becomes half of what
    the wave held, and its branches are run again; give_back is called in between, to free what the failed
    try has left. Raises the error when a branch alone is too much.
    """
    waiting = sorted(range(len(sizes)), key=lambda branch: -sizes[branch])
    while waiting:
        wave = waiting[: first_wave([sizes[branch] for branch in waiting], limit)]
        if _fits(run, sorted(wave), last_try=len(wave) == 1):
            waiting = waiting[len(wave) :]
            continue
        # Outside of the except block: its traceback would keep the failed wave's tensors alive.
        give_back()
        limit = sum(sizes[branch] for branch in wave) // 2
        log(f"out of memory with {len(wave)} branches at once: decoding them in smaller groups.")


def _fits(run: Callable[[list[int]], None], wave: list[int], last_try: bool) -> bool:
    try:
        run(wave)
    except (RuntimeError, MemoryError) as error:
        if last_try or not memory.ran_out(error):
            raise
        return False
    return True
