"""ArkVale: pages of the prefix, scored by a cuboid: centre plus or minus the mean absolute deviation.

An estimate, not a bound. `group=logits` averages the query heads' page scores themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.refresh.base import Cost, Reselect
from kvbench.methods.refresh.pages import check_page, split_pages, spread
from kvbench.methods.registry import option, refresh


@refresh(
    "arkvale", line="best pages by the cuboid around their keys, every step", source="ArkVale (NeurIPS 2024)"
)
@dataclass(frozen=True)
class ArkVale(Reselect):
    page: int = option(16, "entries per page (16 and 32 are swept); divides the selection", minimum=1)
    centre: str = option(
        "mean", "centre of the cuboid: mean key or middle of the extremes", choices=("mean", "middle")
    )

    def check(self, selected):
        check_page(self, selected)

    def cost(self, prefix, dim, selected):
        summaries = 2 * -(-prefix // self.page)
        return Cost(held=summaries, dots=summaries, fetched=2 * selected)

    def page_logits(self, step):
        """[B, H, G, pages] q . centre + |q| . deviation, which is the sum of max(q * high, q * low)."""
        centre, spread_ = step.prefix.memo(
            ("arkvale", self.page, self.centre, step.count), lambda: self._cuboids(step)
        )
        return step.against(step.query, centre[step.layer]) + step.against(
            step.query.abs(), spread_[step.layer]
        )

    def _cuboids(self, step):
        """([L, H, pages, d] centres, mean absolute deviations)."""
        import torch

        sizes = torch.full((-(-step.count // self.page), 1), float(self.page), device=step.query.device)
        sizes[-1] = (step.count - 1) % self.page + 1
        centres, deviations = [], []
        for layer in range(step.prefix.layers):
            keys = step.prefix.keys_of(layer, step.count).float()
            if self.centre == "mean":
                centre = split_pages(keys, self.page, 0.0).sum(-2) / sizes
            else:
                low = split_pages(keys, self.page, float("inf")).amin(-2)
                centre = (low + split_pages(keys, self.page, float("-inf")).amax(-2)) / 2
            away = (keys - centre.repeat_interleave(self.page, 1)[:, : step.count]).abs()
            centres.append(centre.to(step.query.dtype))
            deviations.append((split_pages(away, self.page, 0.0).sum(-2) / sizes).to(step.query.dtype))
        return torch.stack(centres), torch.stack(deviations)

    def propose(self, step):
        return step.top(
            spread(step.shares(self.page_logits(step), self.group), self.page, step.count), step.selected
        )
