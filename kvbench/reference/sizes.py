"""How many questions a published value can be from, by arithmetic on its printed digits.

A share of n questions that are right or wrong is a multiple of 1/n. Printed with one digit in percent, any
number can be one of 2,500; but values that are all multiples of 0.2 are, but for a chance of 2**-values, from
500 questions (or fewer), whatever the data set holds. A table whose values all end with 0, as BACON's table
9, prints one digit less than it shows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from kvbench import reference

# Questions of the split that conf/benchmark asks, by benchmark and metric, where a question is worth 0 or 1.
# Left out: TextVQA, ANLS, ROUGE, F1 and CIDEr, WUPS, and LongBench's trec, passage_count and
# passage_retrieval, which give parts of a point; ScreenSpot's average, which is of its six parts.
WHOLE = {
    ("chartqa", "relaxed_overall"): 2500,
    ("ocrbench", "ocrbench_accuracy"): 1000,
    ("mmmu", "mmmu_acc"): 900,
    ("videomme", "videomme_perception_score"): 900,  # the 30 to 60 minute videos
    ("hrbench_4k", "average"): 800,  # 200 in four orders of their options (data set card, DreamMr/HR-Bench)
    ("hrbench_8k", "average"): 800,
    ("screenspot", "center_mobile_text"): 273,  # the parts: SeeClick (Cheng et al. 2024); 1,272 in all
    ("screenspot", "center_mobile_icon"): 229,
    ("screenspot", "center_desktop_text"): 194,
    ("screenspot", "center_desktop_icon"): 140,
    ("screenspot", "center_web_text"): 230,
    ("screenspot", "center_web_icon"): 206,
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
def _padded() -> set[tuple[str, str]]:
    """Tables (paper, table) whose shares all end with a 0 behind the point."""
    tables: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in reference.rows():
        if row.unit == "%":
            tables[row.paper, row.table].add(row.value)
    return {
        name
        for name, values in tables.items()
        if len(values) >= FEWEST and all("." in value and value.endswith("0") for value in values)
    }


@lru_cache
def _subsets() -> dict[tuple[str, str, str, str], str]:
    """By paper, model, benchmark and metric: why the values are not of the whole set."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in reference.rows():
        if (row.benchmark, row.metric) in WHOLE and row.method != "fullkv":
            capacity = row.method.partition("+")[0]
            column = (row.paper, row.model, row.benchmark, row.metric)
            value = row.value[:-1] if (row.paper, row.table) in _padded() else row.value
            groups[(*column, row.table, capacity)].append(value)
    found: dict[tuple[str, str, str, str], str] = {}
    for (*column, _, _), values in groups.items():
        whole = WHOLE[column[2], column[3]]
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


def subset(row: reference.PublishedValue) -> str:
    """Why a published value is not of the whole set, though no subset is printed; empty where it may be."""
    return _subsets().get((row.paper, row.model, row.benchmark, row.metric), "")
