"""How many questions a published value can be from, by arithmetic on its printed digits.

A share of n questions that are right or wrong is a multiple of 1/n. Printed with one digit in percent, any
number can be one of 2,500; but values that are all multiples of 0.2 are, but for a chance of 2**-values, from
500 questions (or fewer), whatever the data set holds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from kvbench import reference

# Questions of the split that conf/benchmark asks, for metrics whose values by question are 0 or 1.
WHOLE = {
    "relaxed_overall": 2500,
    "ocrbench_accuracy": 1000,
    "mmmu_acc": 900,
    "videomme_perception_score": 900,  # the 30 to 60 minute videos
}
FEWEST = 5  # different values below which a common step says nothing
CHANCE = 1 / 200  # how rarely different values of a whole set may look like a subset's by luck


def fits(value: str, n: int) -> bool:
    """Whether a printed share in percent is one of n questions, rounded to its digits."""
    digits = len(value.partition(".")[2])
    nearest = round(float(value) * n / 100)
    half = 0.5 * 10.0**-digits + 1e-9
    return any(abs(100 * k / n - float(value)) <= half for k in (nearest - 1, nearest, nearest + 1))


def step(values: Sequence[str]) -> tuple[float, float]:
    """The largest step that all printed shares are multiples of, in percent, and the chance of that."""
    digits = max(len(value.partition(".")[2]) for value in values)
    units = [round(float(value) * 10**digits) for value in values]
    common = math.gcd(*units)
    return common / 10**digits, float(common) ** -len(set(units)) if common and len(
        set(units)
    ) >= FEWEST else 1.0


@lru_cache
def _subsets() -> dict[tuple[str, str, str, str], str]:
    """By paper, model, benchmark and metric: why the values are not of the whole set."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in reference.rows():
        if row.metric in WHOLE and row.method != "fullkv":
            capacity = row.method.partition("+")[0]
            column = (row.paper, row.model, row.benchmark, row.metric)
            groups[(*column, row.table, capacity)].append(row.value)
    found: dict[tuple[str, str, str, str], str] = {}
    for (*column, _, _), values in groups.items():
        whole = WHOLE[column[3]]
        size, chance = step(values)
        if chance < CHANCE and 100 / size < whole:
            found.setdefault(
                tuple(column),
                f"multiples of {size:g}, as of {100 / size:,.0f} questions, not of the {whole:,} of the set",
            )
        elif not all(fits(value, whole) for value in values):
            wrong = next(value for value in values if not fits(value, whole))
            found.setdefault(tuple(column), f"{wrong} is no share of the {whole:,} questions of the set")
    return found


def subset(row: reference.Row) -> str:
    """Why a published value is not of the whole set, though no subset is printed; empty where it may be."""
    return _subsets().get((row.paper, row.model, row.benchmark, row.metric), "")
