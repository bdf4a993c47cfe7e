"""Quest: pages of the prefix, scored by an upper bound of their logits from per-dimension extremes."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.refresh.base import Cost, Reselect
from kvbench.methods.refresh.pages import check_page, split_pages, spread
from kvbench.methods.registry import option, refresh


@refresh(
    "quest",
    line="best pages by an upper bound of their logits, every step",
    source="Quest (arXiv:2406.10774)",
)
@dataclass(frozen=True)
class Quest(Reselect):
    page: int = option(16, "entries per page (8, 16 and 32 are swept); divides the selection", minimum=1)

    def check(self, selected):
        check_page(self, selected)

    def cost(self, prefix, dim, selected):
        summaries = 2 * -(-prefix // self.page)
        return Cost(held=summaries, dots=summaries, fetched=2 * selected)

    def page_logits(self, step):
        """[B, H, G, pages] sum over dimensions of max(q * max, q * min): at least every logit in the page."""
        low, high = step.prefix.memo(("quest", self.page, step.count), lambda: self._summaries(step))
        return step.against(step.query.clamp(min=0), high[step.layer]) + step.against(
            step.query.clamp(max=0), low[step.layer]
        )

    def _summaries(self, step):
        """([L, H, pages, d] minima, maxima); an unfilled last page counts the entries it has."""
        import torch

        lows, highs = [], []
        for layer in range(step.prefix.layers):
            keys = step.prefix.keys_of(layer, step.count)
            lows.append(split_pages(keys, self.page, float("inf")).amin(-2))
            highs.append(split_pages(keys, self.page, float("-inf")).amax(-2))
        return torch.stack(lows), torch.stack(highs)

    def propose(self, step):
        return step.top(
            spread(step.shares(self.page_logits(step), self.group), self.page, step.count), step.selected
        )
