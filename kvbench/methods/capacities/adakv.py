"""AdaKV capacity: heads of one layer share their entries by where the base score's mass lies.

Decisions: shares go by b whatever score selects inside a head, as the published code does (`share=score`: by
that score, after ECOKV's appendix A.1; what is negative counts as 0, and a score that depends on the counts
is asked with uniform ones); the floor is 0.2, as published (ECOKV's table 6 prints 0.1).
"""

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
    share: str = option(
        "base", "heads share by b, or by the score that selects (A.1)", choices=("base", "score")
    )
    normalise: bool = option(True, "weight each head by the share of its mass within its own top B")

    @property
    def needs_scores(self) -> bool:
        return self.share == "score"

    def __call__(self, view, selected, scores=None):
        import torch

        base = view.b_ranked if scores is None else scores.clamp(min=0).sort(-1, descending=True).values
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
