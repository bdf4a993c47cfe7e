"""Fixed threshold: a layer is re-selected exactly when its drift exceeds tau (RCR's baseline; tau is swept)."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.refresh.base import Cost, Triggered
from kvbench.methods.registry import option, refresh


@refresh("threshold", line="exact re-selection when drift exceeds a fixed tau", source="RCR, fixed drift threshold")
@dataclass(frozen=True)
class Threshold(Triggered):
    tau: float = option(0.03, "refresh a layer above this drift (0.02 to 0.15 in the paper)", minimum=0, maximum=1)
    branching: bool = option(False, "decide on the host and skip untriggered layers; same tokens, for checking")

    def cost(self, prefix, dim, selected):
        return Cost(dots=prefix, scanned=prefix, fetched=selected)

    def logits(self, step):
        return step.exact_logits

    def propose(self, step):
        return step.top(step.shares(step.exact_logits, self.group), step.selected)
