"""Exact re-selection: every step, layer and KV head takes the true top entries of the prefix."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.refresh.base import Cost, Reselect
from kvbench.methods.registry import refresh


@refresh(
    "exact",
    line="true top entries by the current query, every step",
    source="RCR, exact per-step re-selection",
)
@dataclass(frozen=True)
class Exact(Reselect):
    def cost(self, prefix, dim, selected):
        return Cost(dots=prefix, scanned=prefix, fetched=selected)

    def propose(self, step):
        return step.top(step.shares(step.exact_logits, self.group), step.selected)
