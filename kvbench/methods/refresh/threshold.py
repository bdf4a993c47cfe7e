"""Fixed threshold: exact re-selection of a layer whose drift exceeds tau (RCR's baseline; tau is swept)."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.refresh.base import Cost, Triggered
from kvbench.methods.registry import refresh


@refresh(
    "threshold", line="exact re-selection when drift exceeds a fixed tau", source="RCR, fixed drift threshold"
)
@dataclass(frozen=True)
class Threshold(Triggered):
    def cost(self, prefix, dim, selected):
        return Cost(dots=prefix, scanned=prefix, fetched=selected)

    def logits(self, step):
        return step.exact_logits

    def propose(self, step):
        if self.group == "logits":
            return step.top(step.exact_logits.mean(2), step.selected)
        shares, _ = step.prefix_attention(lambda: step.exact_logits)
        return step.top(step.reduce(shares, self.group), step.selected)
