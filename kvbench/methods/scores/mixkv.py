"""MixKV: importance mixed with diversity, weighted by how redundant the head's keys are.

Decisions: diversity is scaled to the mean of b, as the published code does; ECOKV's appendix A.1 writes the
mean of the importance (`scale=importance`). The weight is this prompt's; A.1 has a static prior for Qwen2-VL
(`weight=static`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.errors import UserError
from kvbench.methods.base import WindowScore
from kvbench.methods.registry import option, score


@score(
    "mixkv",
    line="importance mixed with cosine diversity by head redundancy",
    source="MixKV; ECOKV appendix A.1",
)
@dataclass(frozen=True)
class MixKV(WindowScore):
    weight: str = option(
        "online", "redundancy weight: this prompt's, or a static prior", choices=("online", "static")
    )
    scale: str = option(
        "base", "diversity has the mean of b or of the importance (A.1)", choices=("base", "importance")
    )
    prior: str | None = option(None, 'JSON file {"layer-head": weight} of the static prior')

    def __call__(self, view, selected):
        from kvbench.methods.observation import min_max, scaled_to

        diversity = scaled_to(min_max(-view.cosines), view.scale(self.scale))
        r = (view.redundancy if self.weight == "online" else self._prior(view)).unsqueeze(-1)
        return r * diversity + (1 - r) * view.importance

    def _prior(self, view):
        from kvbench.methods.capacities.sparsemm import read_head_scores

        layers, heads, _ = view.observation.shape
        weight = view.observation.mixkv_weight
        if self.prior is not None:
            weight = view.observation.memo(
                ("mixkv prior", self.prior), lambda: read_head_scores(self.prior, layers, heads)
            )
        if weight is None:
            raise UserError(
                "mixkv with weight=static needs a prior: set score.prior to a JSON file, pass mixkv_weight "
                "[layers, kv_heads] to select(), or use weight=online."
            )
        if tuple(weight.shape) != (layers, heads):
            raise UserError(f"mixkv_weight must have shape ({layers}, {heads}), not {tuple(weight.shape)}.")
        return weight.float().to(view.b.device)
