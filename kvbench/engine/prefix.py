"""The full prompt of a sample while it decodes: what refreshing branches read from.

Held once per sample, on the device or (offload) in CPU memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvbench.engine.prefill import Prefill

if TYPE_CHECKING:
    from kvbench.engine.refresh import Plan


class Prefix:
    """The full prompt of one sample, shared by all groups, on the device or (offload) in CPU memory."""

    def __init__(self, prefill: Prefill, offload: bool):
        self.device, self.offload = prefill.logits.device, offload
        self.keys, self.values = prefill.key_stack, prefill.value_stack  # [L, H, N, d]
        if offload and self.device.type == "cuda":
            self.keys, self.values = (t.cpu().pin_memory() for t in (self.keys, self.values))
        self.query_basis = prefill.query_basis
        self.layers, self.heads, self.length, _ = self.keys.shape
        self._memo: dict[Hashable, Any] = {}

    def memo(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Compute once per sample."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def keys_of(self, layer: int, count: int) -> Tensor:
        """[H, count, d] the first keys of a layer, on the device."""
        return self.keys[layer, :, :count].to(self.device, non_blocking=True)

    def gather(self, source: Tensor, layer: int, positions: Tensor) -> Tensor:
        """Entries of self.keys or self.values at positions [B, H, k] -> [B, H, k, d], on the device."""
        if self.offload:
            positions = positions.to(source.device)
        start = torch.arange(self.heads, device=positions.device).view(-1, 1) * self.length
        flat = source[layer].reshape(-1, source.shape[-1])
        return flat[positions + start].to(self.device, non_blocking=True)


class Prefixes:
    """The shared prefixes of a sample, made when first asked for."""

    def __init__(self, prefill: Prefill):
        self._prefill, self._made = prefill, {}

    def __getitem__(self, offload: bool) -> Prefix:
        if offload not in self._made:
            self._made[offload] = Prefix(self._prefill, offload)
        return self._made[offload]

    def prepare(self, plans: list[Plan | None]) -> None:
        """Make those that plans need, so that none is asked for after `release`."""
        for plan in plans:
            if plan is not None:
                self[plan.policy is not None and plan.policy.offload]

    @property
    def host_only(self) -> Prefix | None:
        """The prefix in CPU memory, when no one needs one on the device."""
        return self._made.get(True) if False not in self._made else None

    def release(self) -> None:
        """Let go of the device's copy of the prompt when only the one in CPU memory is still needed."""
        host = self.host_only
        if host is not None:
            self._prefill.key_stack, self._prefill.value_stack = host.keys, host.values
