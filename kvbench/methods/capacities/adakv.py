"""AdaKV capacity: heads of one layer share their entries by where the base score's mass lies."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import UnevenCapacity
from kvbench.methods.registry import capacity, option


@capacity(
    "adakv", line="heads of a layer share a pool by their base scores", source="AdaKV (arXiv:2407.11550)"
)
@dataclass(frozen=True)
class AdaKV(UnevenCapacity):
    floor: float = option(0.2, "share of B that every head gets regardless", minimum=0, maximum=1)
    normalise: bool = option(True, "weight each head by the share of its mass within its own top B")

    def __call__(self, view, selected):
        import torch

        base = view.b_ranked  # always b, whatever score selects inside a head
        layers, heads, candidates = base.shape
        if self.normalise:
            total = base.sum(-1, keepdim=True)
            top = base[..., :selected].sum(-1, keepdim=True)
            base = base * (top / total.where(total > 0, torch.ones_like(total)))
        order = base.flatten(1).argsort(dim=-1, descending=True, stable=True)
        winners = order[:, : heads * selected] // candidates
        counts = torch.zeros(layers, heads, dtype=torch.int64, device=base.device)
        counts.scatter_add_(1, winners, torch.ones_like(winners))
        shares = counts.double() * (1 - self.floor) + int(self.floor * selected)
        return shares.round().long().clamp(0, candidates).cpu()
