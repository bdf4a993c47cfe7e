"""A claim, our figure for it, and whether the figure's interval decides it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvbench.analysis.resampling import FEWEST

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Region:
    """Where a figure must lie for its claim to hold; the ends are outside."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"< {self.high:g}"
        return f"> {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Finding:
    """A figure and its 95 % interval (NaN: none) over ``n`` samples in ``clusters`` pages.

    ``counted``: a count of decisions, which has no sampling interval; ``note`` explains it.
    """

    value: float
    low: float
    high: float
    n: int
    clusters: int
    counted: bool = False
    note: str = ""


def verdict(estimate: Finding, region: Region) -> str:
    """HOLDS when the whole interval lies in the region, FAILS when all of it lies outside, else UNDECIDED.

    An interval that touches an end, one that does not exist and one of fewer than FEWEST pages separate
    nothing: UNDECIDED.
    """
    if estimate.clusters < FEWEST:
        return UNDECIDED
    low, high = (estimate.value,) * 2 if estimate.counted else (estimate.low, estimate.high)
    if not (math.isfinite(low) and math.isfinite(high)):
        return UNDECIDED
    if low > region.low and high < region.high:
        return HOLDS
    return FAILS if high < region.low or low > region.high else UNDECIDED


@dataclass(frozen=True)
class Claim:
    """What a paper says, and how it is tested here: a record of claims.yaml, which explains the fields."""

    id: str
    paper: str
    text: str
    figure: str
    estimate: str
    digits: int
    region: Region
    command: str
    measure: str | Mapping[str, list | Mapping]


@dataclass(frozen=True)
class ClaimRow:
    """A claim with its figure; without one, ``note`` says what is missing."""

    claim: Claim
    estimate: Finding | None
    note: str = ""

    @property
    def verdict(self) -> str:
        """HOLDS, FAILS or UNDECIDED; empty for a hole."""
        return verdict(self.estimate, self.claim.region) if self.estimate else ""


class Hole(Exception):
    """The data of a claim are missing; the message says which."""
