"""R-KV: importance against redundancy.

Decision: the redundancy of a key is its mean cosine to all other keys (softmax over candidates), in closed
form, without the published per-pair threshold: linear instead of quadratic in the prompt length.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import WindowScore
from kvbench.methods.registry import option, score


@score("rkv", line="window attention against mean cosine to other keys", source="R-KV (arXiv:2505.24133)")
@dataclass(frozen=True)
class RKV(WindowScore):
    trade: float = option(
        0.1, "lambda: weight of importance; 1 - lambda weighs redundancy", minimum=0, maximum=1
    )

    def __call__(self, view, selected):
        redundancy = (view.length * view.cosines - 1) / (
            view.length - 1
        )  # mean cosine to the other N - 1 keys
        return self.trade * view.b - (1 - self.trade) * redundancy.softmax(-1)
