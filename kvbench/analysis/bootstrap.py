"""Is a difference between two cells more than the luck of the samples?

The samples are paired: both cells answered the same questions, so the differences per sample are judged,
page by page where several questions share one (``kvbench.analysis.resampling``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvbench.analysis.resampling import interval, intervals
from kvbench.benchmarks.base import listed
from kvbench.benchmarks.series import Series
from kvbench.errors import UserError


@dataclass(frozen=True)
class Difference:
    """Mean difference of two paired cells and its interval (NaN for fewer than FEWEST clusters).

    ``n`` samples in ``clusters`` independent groups.
    """

    delta: float
    low: float
    high: float
    n: int
    clusters: int

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0. A constant difference of 0 is a tie, not a finding."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval (NaN below FEWEST clusters); ``n`` and ``clusters`` as in Difference."""

    value: float
    low: float
    high: float
    n: int
    clusters: int


Values = Mapping[int, float] | Iterable[tuple[int, float]]
Clusters = Mapping[int, Hashable] | None  # by sample index; None or empty: every sample is its own


def by_index(values: Values, what: str) -> Series:
    """Values by sample index. Raises UserError, naming the samples, on duplicates and on missing values."""
    found = values if isinstance(values, Series) else _collected(values, what)
    broken = found.index[~np.isfinite(found.data)].tolist()
    if broken:
        raise UserError(
            f"{what} has no usable score for samples {listed(broken)}: generate or score them again."
        )
    return found


def _collected(values: Values, what: str) -> Series:
    pairs = list(values.items()) if isinstance(values, Mapping) else list(values)
    result: dict[int, float] = {}
    twice = []
    for index, value in pairs:
        if index in result:
            twice.append(index)
        result[index] = value
    if twice:
        raise UserError(f"{what} holds samples {listed(sorted(set(twice)))} twice: keep one answer of each.")
    return Series.of(result)


def paired(first: Values, second: Values, names: tuple[str, str] = ("first", "second")) -> Series:
    """Differences first - second by sample index, in index order.

    Raises UserError, naming the samples, unless both hold exactly the same samples with finite values.
    """
    ours, theirs = by_index(first, names[0]), by_index(second, names[1])
    if not np.array_equal(ours.index, theirs.index):
        unmatched = sorted(set(ours) ^ set(theirs))
        raise UserError(
            f"{names[0]} and {names[1]} do not hold the same samples (only one has {listed(unmatched)}):"
            " run both on the same limit."
        )
    return Series(ours.index, ours.data - theirs.data)


def labels(indices: Sequence[int], clusters: Clusters) -> list[Hashable] | None:
    """Each sample's cluster. Raises UserError, naming the samples, when some have none."""
    if not clusters:
        return None
    missing = [index for index in indices if index not in clusters]
    if missing:
        raise UserError(
            f"samples {listed(missing)} have no page or picture to group them by: score the store again."
        )
    return [clusters[index] for index in indices]


def estimate(
    values: Values,
    what: str = "values",
    *,
    clusters: Clusters = None,
    weights: Mapping[int, float] | None = None,
    **options: Any,
) -> Estimate:
    """Mean with its 95 % interval; NaN throughout when there is no sample.

    ``clusters`` and ``weights`` (how many units a sample stands for) by sample index; ``options`` are those
    of ``interval``. Raises UserError, naming the samples, on duplicates and on missing values.
    """
    known = by_index(values, what)
    if not known:
        return Estimate(math.nan, math.nan, math.nan, 0, 0)
    order = list(known)
    units = None if weights is None else np.array([weights[index] for index in order], dtype=np.float64)
    groups = labels(order, clusters)
    low, high = interval(known.data, clusters=groups, weights=units, **options)
    mean = float(np.average(known.data, weights=units))
    return Estimate(mean, low, high, len(order), len(set(groups or order)))


def difference(
    first: Values,
    second: Values,
    names: tuple[str, str] = ("first", "second"),
    *,
    clusters: Clusters = None,
    **options: Any,
) -> Difference:
    """Paired mean difference with its 95 % interval; NaN throughout when there is no sample.

    ``clusters`` by sample index; ``options`` are those of ``interval``.
    """
    values = paired(first, second, names)
    if not values:
        return Difference(math.nan, math.nan, math.nan, 0, 0)
    groups = labels(list(values), clusters)
    low, high = interval(values.data, clusters=groups, **options)
    return Difference(float(values.data.mean()), low, high, len(values), len(set(groups or values)))


def differences(
    pairs: Sequence[tuple[Values, Values]],
    names: Sequence[tuple[str, str]],
    *,
    clusters: Clusters = None,
    **options: Any,
) -> list[Difference | UserError]:
    """``difference`` of many pairs of cells at once: those with the same samples together.

    A pair that ``difference`` refuses gives its UserError in the pair's place.
    """
    found: list[Difference | UserError] = []
    alike: dict[bytes, dict[int, Series]] = {}  # by the samples' indices: differences by place
    for place, ((first, second), pair_names) in enumerate(zip(pairs, names, strict=True)):
        try:
            values = paired(first, second, pair_names)
        except UserError as error:
            found.append(error)
            continue
        found.append(Difference(math.nan, math.nan, math.nan, 0, 0))
        if values:
            alike.setdefault(values.index.tobytes(), {})[place] = values
    for places in alike.values():
        indices = list(next(iter(places.values())))
        try:
            groups = labels(indices, clusters)
        except UserError as error:
            found = [error if place in places else one for place, one in enumerate(found)]
            continue
        matrix = np.array([values.data for values in places.values()]).T
        low, high = intervals(matrix, clusters=groups, **options)
        count = len(set(groups or indices))
        for column, place in enumerate(places):
            mean = float(matrix[:, column].mean())
            found[place] = Difference(mean, float(low[column]), float(high[column]), len(indices), count)
    return found
