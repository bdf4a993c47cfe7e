"""Is a difference between two cells more than the luck of the samples?

The samples are paired: both cells answered the same questions, so the differences per sample are
resampled. The percentile interval and the resampling are scipy's. The random indices depend on the seed
and the number of samples alone, so all methods of a benchmark are judged on the same resamples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from kvbench.benchmarks.base import listed
from kvbench.errors import UserError

RESAMPLES = 9999
SEED = 0
_BATCH_VALUES = 20_000_000  # resampled values held at once: bounds memory on large benchmarks


@dataclass(frozen=True)
class Difference:
    """Mean difference of two paired cells and its interval (NaN for fewer than 2 samples)."""

    delta: float
    low: float
    high: float
    n: int

    @property
    def sure(self) -> bool:
        """Whether the interval excludes 0. A constant difference of 0 is a tie, not a finding."""
        return self.low > 0 or self.high < 0


Values = Mapping[int, float] | Iterable[tuple[int, float]]


def by_index(values: Values, what: str) -> dict[int, float]:
    """Values by sample index. Raises UserError, naming the samples, on duplicates and on missing values."""
    pairs = list(values.items()) if isinstance(values, Mapping) else list(values)
    result: dict[int, float] = {}
    twice = []
    for index, value in pairs:
        if index in result:
            twice.append(index)
        result[index] = value
    if twice:
        raise UserError(f"{what} holds samples {listed(sorted(set(twice)))} twice: keep one answer of each.")
    broken = sorted(i for i, value in result.items() if value is None or not math.isfinite(value))
    if broken:
        raise UserError(
            f"{what} has no usable score for samples {listed(broken)}: generate or score them again."
        )
    return result


def paired(first: Values, second: Values, names: tuple[str, str] = ("first", "second")) -> np.ndarray:
    """Differences first - second, [n], in index order.

    Raises UserError, naming the samples, unless both hold exactly the same samples with finite values.
    """
    ours, theirs = by_index(first, names[0]), by_index(second, names[1])
    unmatched = sorted(set(ours) ^ set(theirs))
    if unmatched:
        raise UserError(
            f"{names[0]} and {names[1]} do not hold the same samples (only one has {listed(unmatched)}):"
            " run both on the same limit."
        )
    order = sorted(ours)
    return np.array([ours[i] for i in order], dtype=float) - np.array([theirs[i] for i in order], dtype=float)


def interval(
    values: np.ndarray, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of ``values`` [n]; (NaN, NaN) for fewer than two."""
    from scipy.stats import bootstrap

    n = len(values)
    if n < 2:
        return math.nan, math.nan
    options = {
        "n_resamples": resamples,
        "confidence_level": confidence,
        "method": "percentile",
        "batch": max(1, _BATCH_VALUES // n),
        "vectorized": True,
    }
    try:
        result = bootstrap((values,), np.mean, rng=np.random.default_rng(seed), **options)
    except TypeError:  # scipy before 1.15 calls it random_state
        result = bootstrap((values,), np.mean, random_state=np.random.default_rng(seed), **options)
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def difference(
    first: Values, second: Values, names: tuple[str, str] = ("first", "second"), **options: float
) -> Difference:
    """Paired mean difference with its 95 % interval; NaN throughout when there is no sample."""
    values = paired(first, second, names)
    if not len(values):
        return Difference(math.nan, math.nan, math.nan, 0)
    low, high = interval(values, **options)
    return Difference(float(values.mean()), low, high, len(values))
