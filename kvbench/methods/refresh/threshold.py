"""Fixed threshold: RCR without its rate control, tau swept (RCR's baseline).

Decision: the source describes rate control as what RCR adds to a fixed threshold, so the baseline detects
drift and proposes candidates as RCR does (`detector=lowrank`: the tokens of rcr with eta=0).
`detector=exact` scans the whole prefix at every step for drift and selection, which is no cheaper than
re-selecting exactly at every step: an upper bound of what a threshold can do.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.errors import UserError
from kvbench.methods.refresh.base import Cost
from kvbench.methods.refresh.lowrank import LowRank
from kvbench.methods.registry import option, refresh


@refresh("threshold", line="rcr's re-selection when drift exceeds a fixed tau", source="RCR, fixed threshold")
@dataclass(frozen=True)
class Threshold(LowRank):
    detector: str = option(
        "lowrank",
        "drift and candidates as rcr's, or exact ones from a scan of the whole prefix",
        choices=("lowrank", "exact"),
    )

    def __post_init__(self):
        """Raises UserError for options that the exact detector would ignore."""
        if self.detector == "exact" and (self.rank, self.candidates) != (
            type(self).rank,
            type(self).candidates,
        ):
            raise UserError(
                "refresh.rank and refresh.candidates do nothing with refresh.detector=exact: leave them out, "
                "or set refresh.detector=lowrank."
            )

    def cost(self, prefix, dim, selected):
        if self.detector == "lowrank":
            return super().cost(prefix, dim, selected)
        return Cost(dots=prefix, scanned=prefix, fetched=selected)

    def logits(self, step):
        return super().logits(step) if self.detector == "lowrank" else step.exact_logits

    def propose(self, step):
        if self.detector == "lowrank":
            return super().propose(step)
        if self.group == "logits":
            return step.top(step.exact_logits.mean(2), step.selected)
        shares, _ = step.prefix_attention(lambda: step.exact_logits)
        return step.top(step.reduce(shares, self.group), step.selected)
