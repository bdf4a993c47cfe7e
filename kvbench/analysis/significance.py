"""Exact tests beside the intervals: McNemar for right or wrong, Holm for several comparisons at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from kvbench.analysis.bootstrap import Values, paired
from kvbench.benchmarks.series import Series
from kvbench.errors import UserError

Name = TypeVar("Name")


def binary(scores: Values) -> bool:
    """Whether every score is 0 or 1."""
    data = Series.of(scores if isinstance(scores, Mapping) else dict(scores)).data
    return bool(((data == 0) | (data == 1)).all())


def mcnemar(first: Values, second: Values, names: tuple[str, str] = ("first", "second")) -> float:
    """Two-sided exact p that two paired cells are right equally often (McNemar 1947, binomial form).

    Only samples that one of the two answers rightly count; without any, p is 1. Samples count as
    independent: where questions share a picture the clustered interval decides. Raises UserError unless
    every score is 0 or 1 and both hold the same samples.
    """
    from scipy.stats import binomtest

    gaps = paired(first, second, names).data
    if not (binary(first) and binary(second)):
        raise UserError(f"McNemar's test needs scores of 0 and 1, and {' or '.join(names)} has others.")
    wins, losses = int((gaps > 0).sum()), int((gaps < 0).sum())
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def holm(values: Mapping[Name, float]) -> dict[Name, float]:
    """p values of a declared family, adjusted so that all its rejections hold together (Holm 1979).

    A NaN is not part of the family and stays NaN.
    """
    known = sorted((p, place) for place, p in enumerate(values.values()) if not math.isnan(p))
    adjusted = [math.nan] * len(values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[place] = largest
    return dict(zip(values, adjusted, strict=True))
