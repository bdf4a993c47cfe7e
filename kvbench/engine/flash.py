"""flash-attention's decode kernel: every row attends to as many entries as it has, and reads no more.

Used where the package flash_attn is installed and the device can run it; nothing else depends on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

HEAD_DIM = 256  # the largest that the kernels are built for; they take multiples of 8


@functools.cache
def kernel() -> Callable | None:
    """`flash_attn_with_kvcache` of the installed package; None without one."""
    try:
        from flash_attn import flash_attn_with_kvcache
    except ImportError:
        return None
    return flash_attn_with_kvcache


def usable(device: torch.device, dtype: torch.dtype, dim: int) -> bool:
    """Whether the kernel can attend to keys [..., dim] of this dtype there."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    if dim > HEAD_DIM or dim % 8:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and kernel() is not None


def attend(query: Tensor, keys: Tensor, values: Tensor, ends: Tensor, scaling: float) -> Tensor:
    """query [R, 1, G, d], keys and values [R, W, d], ends int32 [R] -> [R, 1, G, d].

    Row r attends to its first ends[r] entries. Each row is a sequence with one KV head and G query heads,
    so the kernel's arguments are q [R, 1, G, d], k_cache and v_cache [R, W, 1, d], cache_seqlens [R]
    (flash_attn_with_kvcache in flash_attn/flash_attn_interface.py of Dao-AILab/flash-attention, version 2).
    """
    # Under a compiler the kernel is an operator of its own, as it cannot be traced.
    call = _operator if torch.compiler.is_compiling() else _call
    return call(query, keys, values, ends, scaling)


def _call(query: Tensor, keys: Tensor, values: Tensor, ends: Tensor, scaling: float) -> Tensor:
    k_cache, v_cache = keys.unsqueeze(2), values.unsqueeze(2)
    return kernel()(query, k_cache, v_cache, cache_seqlens=ends, softmax_scale=scaling, causal=False)


_operator = torch.library.custom_op(
    "kvbench::flash_rows",
    _call,
    mutates_args=(),
    schema="(Tensor query, Tensor keys, Tensor values, Tensor ends, float scaling) -> Tensor",
)


@_operator.register_fake
def _shape(query: Tensor, keys: Tensor, values: Tensor, ends: Tensor, scaling: float) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)
