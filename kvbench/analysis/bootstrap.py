"""Is a difference between two cells more than the luck of the samples?

The samples are paired: both cells answered the same questions, so the differences per sample are
resampled, page by page where several questions share one (``kvbench.analysis.resampling``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvbench.analysis.resampling import interval, intervals
from kvbench.benchmarks.base import listed
from kvbench.errors import UserError


@dataclass(frozen=True)
class Difference:
    """Mean difference of two paired cells and its interval (NaN for fewer than 2 clusters).

    ``n`` samples in ``clusters`` independent groups.
    """

    delta: float
    low: float
    high: float
    n: int
    clusters: int

    @property
    def sure(self) -> bool:
        """Whether the interval excludes 0. A constant difference of 0 is a tie, not a finding."""
        return self.low > 0 or self.high < 0


Values = Mapping[int, float] | Iterable[tuple[int, float]]
Clusters = Mapping[int, Hashable] | None  # by sample index; None or empty: every sample is its own


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


def paired(first: Values, second: Values, names: tuple[str, str] = ("first", "second")) -> dict[int, float]:
    """Differences first - second by sample index, in index order.

    Raises UserError, naming the samples, unless both hold exactly the same samples with finite values.
    """
    ours, theirs = by_index(first, names[0]), by_index(second, names[1])
    unmatched = sorted(set(ours) ^ set(theirs))
    if unmatched:
        raise UserError(
            f"{names[0]} and {names[1]} do not hold the same samples (only one has {listed(unmatched)}):"
            " run both on the same limit."
        )
    return {index: float(ours[index]) - float(theirs[index]) for index in sorted(ours)}


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
    series = np.array(list(values.values()))
    groups = labels(list(values), clusters)
    low, high = interval(series, clusters=groups, **options)
    return Difference(float(series.mean()), low, high, len(series), len(set(groups or values)))


def differences(
    pairs: Sequence[tuple[Values, Values]],
    names: Sequence[tuple[str, str]],
    *,
    clusters: Clusters = None,
    **options: Any,
) -> list[Difference | UserError]:
    """``difference`` of many pairs of cells at once: those with the same samples share one matrix product.

    A pair that ``difference`` refuses gives its UserError in the pair's place.
    """
    found: list[Difference | UserError] = []
    alike: dict[tuple[int, ...], list[int]] = {}
    series: list[dict[int, float]] = []
    for place, ((first, second), pair_names) in enumerate(zip(pairs, names, strict=True)):
        try:
            values = paired(first, second, pair_names)
            labels(list(values), clusters)
        except UserError as error:
            values = {}
            found.append(error)
        else:
            found.append(Difference(math.nan, math.nan, math.nan, 0, 0))
            if values:
                alike.setdefault(tuple(values), []).append(place)
        series.append(values)
    for indices, places in alike.items():
        matrix = np.array([list(series[place].values()) for place in places]).T
        groups = labels(indices, clusters)
        low, high = intervals(matrix, clusters=groups, **options)
        count = len(set(groups or indices))
        for column, place in enumerate(places):
            mean = float(matrix[:, column].mean())
            found[place] = Difference(mean, float(low[column]), float(high[column]), len(indices), count)
    return found
