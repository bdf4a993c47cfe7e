"""ECOKV: Euclidean and cosine diversity, weighted by a redundancy estimate from both (ECOKV section 5).

Decisions where the paper is open: the cosine term takes the sign of appendix A.1 (the printed algorithm
would reward redundancy; `printed_sign` runs it); MAD scaling is sigmoid((d - median) / (MAD *
mad_temperature)); with redundancy=std, equation 8 as printed replaces r_E, with std_weight it is the whole
weight (appendix D.1's words); diversity has the mean of the importance (A.1; scale=base: of b, as in MixKV).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvbench.methods.base import WindowScore
from kvbench.methods.registry import option, score


@score(
    "ecokv", line="importance mixed with Euclidean and cosine diversity", source="ECOKV (arXiv:2609.06663)"
)
@dataclass(frozen=True)
class EcoKV(WindowScore):
    default_window: ClassVar[int] = 4

    alpha: float = option(0.8, "Euclidean share of the diversity score (eq. 3)", minimum=0, maximum=1)
    beta: float = option(0.6, "Euclidean share of the redundancy (eq. 6)", minimum=0, maximum=1)
    tau: float | None = option(
        None, "temperature of the redundancy (eq. 5); default sqrt(head_dim)", minimum=1e-9
    )
    centroid: str = option(
        "all", "mean key over all N or without the window (table 11)", choices=("all", "nonwindow")
    )
    normalise: str = option(
        "minmax", "scaling of distances (table 4)", choices=("minmax", "winsor1", "winsor5", "mad")
    )
    mad_temperature: float = option(1.0, "temperature of MAD scaling", minimum=1e-9)
    redundancy: str = option(
        "euclidean",
        "redundancy from mean distance or standard deviation (table 12)",
        choices=("euclidean", "std", "std_weight"),
    )
    scale: str = option(
        "importance", "diversity has the mean of the importance (A.1) or of b", choices=("importance", "base")
    )
    printed_sign: bool = option(False, "cosine term with the sign printed in algorithm 1")
    epsilon: float = option(1e-8, "stabiliser of the min-max scaling (eq. 2)", minimum=0)

    def __call__(self, view, selected):
        from kvbench.methods.observation import min_max, scaled_to

        diversity = scaled_to(min_max(self.diversity(view)), view.scale(self.scale))
        weight = self.weight(view).unsqueeze(-1)
        return weight * diversity + (1 - weight) * view.importance

    def diversity(self, view):
        """[L, H, M] Euclidean and cosine diversity of each candidate, before it is scaled (eq. 3)."""
        euclidean = self._normalised(view.centroid_distances(self.centroid))
        cosine = (view.cosines + 1) / 2 if self.printed_sign else (1 - view.cosines) / 2
        return self.alpha * euclidean + (1 - self.alpha) * cosine

    def weight(self, view):
        """[L, H] redundancy of each head, the weight of its diversity (eq. 6)."""
        spread = self._spread(view.centroid_distances(self.centroid), view)
        if self.redundancy == "std_weight":
            return spread
        return (self.beta * spread + (1 - self.beta) * view.redundancy).clamp(0, 1)

    def _normalised(self, distance):
        """[L, H, M] distances on [0, 1] (eq. 2; table 4)."""
        import torch

        from kvbench.methods.observation import min_max

        if self.normalise == "mad":
            median = distance.quantile(0.5, dim=-1, keepdim=True)
            mad = (distance - median).abs().quantile(0.5, dim=-1, keepdim=True)
            return torch.sigmoid((distance - median) / ((mad + self.epsilon) * self.mad_temperature))
        if self.normalise.startswith("winsor"):
            share = int(self.normalise.removeprefix("winsor")) / 100
            low = distance.quantile(share, dim=-1, keepdim=True)
            high = distance.quantile(1 - share, dim=-1, keepdim=True)
            distance = distance.clamp(low, high)
        return min_max(distance, self.epsilon)

    def _spread(self, distance, view):
        """[L, H] magnitude-aware redundancy: high where keys lie close to their centroid (eq. 5, eq. 8)."""
        import torch

        tau = self.tau or view.keys.shape[-1] ** 0.5
        if self.redundancy != "euclidean":
            return 1 - torch.sigmoid(distance.square().mean(-1).sqrt() / tau)
        return 2 - 2 * torch.sigmoid(distance.mean(-1) / tau)
