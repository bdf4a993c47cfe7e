"""BACON: window attention calibrated with what only the last query sees (BACON section 4).

Decisions where the paper is open: gamma (eq. 15) defaults to 0.5; neighbourhoods are clipped to the
candidates; radius 0 leaves L out, as table 7's row for r = 0 repeats table 5's without L (by eq. 5 it would
count E twice); E is the residual of attention that is reduced over the query heads and pooled as b is, while
equations 1 to 4 are of one head and unpooled (`heads=query`, `residual=raw|pooled`).

`variant=released` follows the behaviour of the authors' early code: the radius is a pooling kernel, the
standard deviation of V is taken over V's own top set, and lambda is damped by clamp(mean(V) / mean(b), 0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvbench.errors import UserError
from kvbench.methods.base import WindowScore
from kvbench.methods.registry import option, score


@score(
    "bacon", line="window attention plus calibrated last-query evidence", source="BACON (arXiv:2606.14782)"
)
@dataclass(frozen=True)
class Bacon(WindowScore):
    uses_capacity: ClassVar[bool] = True

    evidence: bool = option(True, "term E: positive residual of the last query (eq. 4)")
    coherence: bool = option(True, "term L: mean residual of the neighbourhood (eq. 7)")
    persistence: bool = option(True, "term T: mean residual of preceding layers (eq. 9)")
    radius: int = option(
        5,
        "neighbourhood radius r (eq. 5), 0: no term L; the kernel in variant=released",
        minimum=0,
        maximum=1000,
    )
    depth: int = option(4, "preceding layers m (eq. 8)", minimum=0, maximum=1000)
    rho: float = option(2.0, "expansion of the scale-matching region (eq. 12)", minimum=0.01, maximum=1000)
    gamma: float = option(0.5, "calibration strength (eq. 14; not printed)", minimum=0, maximum=1000)
    residual: str = option(
        "base",
        "E: of attention pooled as b is, of raw attention (eqs. 1 to 4), or pooled after [.]+",
        choices=("base", "raw", "pooled"),
    )
    heads: str = option(
        "group",
        "[.]+ of the group's attention, or per query head and then reduced",
        choices=("group", "query"),
    )
    variant: str = option("paper", "the paper's formula or the early code's", choices=("paper", "released"))
    epsilon: float = option(1e-8, "stabiliser of lambda (eq. 15)", minimum=0)

    def __post_init__(self):
        if self.variant == "released" and self.radius and self.radius % 2 == 0:
            raise UserError(
                "option `radius` of score `bacon` is a kernel in variant=released: make it odd, or 0 for no "
                "term L."
            )

    def __call__(self, view, selected):
        b = view.b
        evidence = self._evidence(view)
        region = (self.rho * selected).long().clamp(max=b.shape[-1]).to(b.device)
        by_b = region_of(b, region, view.b_ranked)
        by_v = region_of(evidence, region) if self.variant == "released" else by_b
        strength = self.gamma * masked_std(b, by_b) / (masked_std(evidence, by_v) + self.epsilon)
        if self.variant == "released":
            strength = strength * (evidence.mean(-1) / b.mean(-1).clamp(min=self.epsilon)).clamp(0, 1)
        return b + strength.unsqueeze(-1) * evidence

    def _evidence(self, view):
        """[L, H, M] V = E + L + T (eq. 10), shared by all budgets of a sample."""
        how = (view.window, view.reduce, view.pool, view.kernel, self.residual, self.heads)
        how += (self.variant, self.radius, self.depth)
        terms = (self.evidence, self.coherence, self.persistence)

        def make():
            import torch

            residual = self._residual(view)
            total = torch.zeros_like(residual)
            if self.evidence:
                total = total + residual
            if self.coherence and self.radius:
                total = total + self._coherence(residual)
            if self.persistence:
                total = total + self._persistence(residual)
            return total

        return view.observation.memo(("bacon evidence", *how, *terms), make)

    def _residual(self, view):
        """[L, H, M] what the last query attends more than the window's mean (eq. 4)."""
        last, mean = view.last_attention, view.observation.query_mean(view.window)
        if self.heads == "group":
            last, mean = view.reduced(last), view.reduced(mean)
        if self.residual == "base":
            last, mean = view.pooled(last), view.pooled(mean)
        residual = (last - mean).clamp(min=0)
        if self.heads == "query":
            residual = view.reduced(residual)
        return view.pooled(residual) if self.residual == "pooled" else residual

    def _coherence(self, residual):
        """[L, H, M] mean residual over |u - i| <= r (eq. 7)."""
        import torch.nn.functional as F

        if self.variant == "paper":
            return F.avg_pool1d(residual, 2 * self.radius + 1, 1, self.radius, count_include_pad=False)
        return F.avg_pool1d(residual, self.radius, 1, self.radius // 2)

    def _persistence(self, residual):
        """[L, H, M] mean residual of the <= m preceding layers, 0 in the first layer (eq. 9)."""
        import torch

        total, count = (
            torch.zeros_like(residual),
            torch.zeros(residual.shape[0], 1, 1, device=residual.device),
        )
        for back in range(1, min(self.depth, residual.shape[0] - 1) + 1):
            total[back:] += residual[:-back]
            count[back:] += 1
        return total / count.clamp(min=1)


def region_of(scores, sizes, ranked=None):
    """[L, H, M] bool: the `sizes` [L, H] highest scores of each head; ranked: the scores sorted downwards."""
    from kvbench.methods.select import top_mask

    return top_mask(scores, sizes, ranked)


def masked_std(scores, mask):
    """[L, H] population standard deviation over the masked positions; 0 where there are none."""
    count = mask.sum(-1).clamp(min=1)
    mean = (scores * mask).sum(-1) / count
    return (((scores - mean.unsqueeze(-1)).square() * mask).sum(-1) / count).sqrt()
