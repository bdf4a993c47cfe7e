"""A claim, our figure for it, and whether the figure's interval decides it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kvbench.analysis.resampling import FEWEST
from kvbench.errors import UserError

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
class Estimate:
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


def verdict(estimate: Estimate, region: Region) -> str:
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
    """What a paper says, and how it is tested here.

    ``figure``: the paper's own figure and its place. ``measure``: what our figure is, with its unit.
    ``command``: the words after ``kvbench`` that produce the data, store=DIR left out.
    """

    paper: str
    text: str
    figure: str
    measure: str
    region: Region
    command: str
    digits: int = 1


@dataclass(frozen=True)
class Row:
    """A claim with its figure; without one, ``note`` says what is missing."""

    claim: Claim
    estimate: Estimate | None
    note: str = ""

    @property
    def verdict(self) -> str:
        """HOLDS, FAILS or UNDECIDED; empty for a hole."""
        return verdict(self.estimate, self.claim.region) if self.estimate else ""


class Hole(Exception):
    """The data of a claim are missing; the message says which."""


Test = tuple[Claim, Callable[[Any], Estimate]]


def evaluate(tests: Iterable[Test], data: Any) -> list[Row]:
    """One row a test: its function of the data, or a hole."""
    found = []
    for claim, figure in tests:
        try:
            found.append(Row(claim, figure(data)))
        except (Hole, UserError) as hole:
            found.append(Row(claim, None, str(hole)))
    return found
