"""Rate-controlled refresh: drift says when, a per-sample threshold holds the refresh rate near rho."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.refresh.lowrank import LowRank
from kvbench.methods.registry import option, refresh


@refresh("rcr", line="re-selection among detected candidates, at a controlled rate", source="RCR")
@dataclass(frozen=True)
class RCR(LowRank):
    rho: float = option(0.4, "target share of layers that refresh", minimum=0, maximum=1)
    eta: float = option(0.05, "gain of the threshold's update", minimum=0, maximum=10)
