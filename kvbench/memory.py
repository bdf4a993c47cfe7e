"""How much memory is left, and what it looks like when it runs out. Needs torch only where it is loaded."""

from __future__ import annotations

import sys
from typing import Any

_CPU_ALLOCATOR = ("can't allocate memory", "not enough memory")  # how torch words it, as a RuntimeError


def free_bytes(device: Any) -> int:
    """Bytes that a torch.device can still give, the unused blocks of the GPU's allocator included."""
    if device.type == "cuda":
        import torch

        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    import psutil

    return psutil.virtual_memory().available


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out, the host's or the device's."""
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _CPU_ALLOCATOR)


def give_back() -> None:
    """Return what the GPU's allocator holds unused, so that a smaller try finds whole blocks."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
