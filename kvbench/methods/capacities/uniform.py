"""Uniform capacity (SnapKV): every head of every layer selects the same number."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import Capacity
from kvbench.methods.registry import capacity


@capacity("uniform", line="every head selects B = C - window", source="SnapKV (arXiv:2404.14469)")
@dataclass(frozen=True)
class Uniform(Capacity):
    def __call__(self, view, selected):
        import torch

        return torch.full(view.observation.shape[:2], selected, dtype=torch.int64)
