"""The prefill oracle: what an uncompressed decode attends to, averaged, as one selection."""

from __future__ import annotations

import torch
from torch import Tensor

from kvbench.engine.prefix import Prefix
from kvbench.engine.refresh import KeptSet, Plan
from kvbench.engine.step import Step
from kvbench.methods.refresh.oracle import Oracle


def is_oracle(plan: Plan | None) -> bool:
    """True when the branch's selection comes from an uncompressed decode."""
    return plan is not None and isinstance(plan.policy, Oracle)


class Recorder:
    """Averages the attention that an uncompressed decode pays to the prefix, for the prefill oracle."""

    speculates = False

    def __init__(self, prefix: Prefix, wanted: list[tuple[int, str]]):
        """wanted: the (window, group) pairs to average for."""
        self.prefix, self.branches = prefix, [0]
        self.sums = {
            (window, group): torch.zeros(
                prefix.layers, prefix.heads, prefix.length - window, device=prefix.device
            )
            for window, group in wanted
        }
        self.steps = 0

    def before(self, layer: int, bucket, end: int, query: Tensor, scaling: float) -> None:
        """Add one step of one layer."""
        query = query.view(1, -1, *query.shape[2:])
        self.steps += layer == 0
        for (window, group), total in self.sums.items():
            held = bucket.keys[None, :, bucket.slots - window : end]
            step = Step(self.prefix, layer, total.shape[-1], query, held, None, 0, scaling)
            total[layer] += step.shares(step.exact_logits, group)[0]

    def failures(self) -> dict:
        """It only looks, so nothing of its own can fail."""
        return {}

    def retain(self, stay: list[int]) -> None:
        """The only branch cannot be dropped."""

    def select(self, plan: Plan) -> KeptSet:
        """The top entries by mean attention, and the window."""
        best = Step.top(self.sums[plan.window, plan.policy.group], plan.selected)
        window = torch.arange(self.prefix.length - plan.window, self.prefix.length, device=best.device)
        return [[torch.cat([head, window]) for head in layer] for layer in best]
