"""What a table is: columns, values, and one model's grid of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvbench.analysis import resampling
from kvbench.analysis.bootstrap import Difference
from kvbench.analysis.results import Entry
from kvbench.benchmarks.fidelity import AGREEMENT, ROUGE

_METRIC_TITLES = {
    "anls": "ANLS",
    "exact_match": "accuracy",
    "relaxed_overall": "relaxed accuracy",
    "fidelity_rougeL": "fidelity",
    "first_divergence": "first divergence",
    "answer_agreement": "same answer",
}


@dataclass(frozen=True)
class Column:
    """One metric of one benchmark at one budget."""

    benchmark: str
    title: str
    metric: str
    scale: float
    budget: int

    @property
    def heading(self) -> str:
        """Benchmark and metric."""
        return f"{self.title} {_METRIC_TITLES.get(self.metric, self.metric.split('_')[-1])}"

    def show(self, value: float) -> str:
        """A value in the column's unit: percentages and steps with one decimal, fractions with three."""
        if not math.isfinite(value):
            return "n/a"
        return f"{value * self.scale:.{self.digits}f}"

    @property
    def maximum(self) -> float | None:
        """The highest value there is, in the metric's own unit; None where none is known, as of CIDEr."""
        return 1.0 if self.scale == 100 or self.metric in (ROUGE, AGREEMENT) else None

    @property
    def digits(self) -> int:
        return 1 if self.scale == 100 or self.metric == "first_divergence" else 3


@dataclass
class Value:
    """What one cell of the table shows; ``entry`` is None where nothing was run."""

    entry: Entry | None
    value: float | None = None
    gap: Difference | None = None
    base: Entry | None = None  # what the gap is from
    p: float | None = None  # of McNemar's test, where scores are 0 or 1, and after Holm's adjustment
    p_holm: float | None = None
    best: bool = False
    trouble: str = ""  # why there is no gap although there is a base


@dataclass(frozen=True)
class Choice:
    """What a reader chooses: about differences, and which benchmarks.

    ``against``: the method that they are from (None: each one's own base, see ``results.base_of``);
    ``interval``: a method of ``resampling.METHODS``; ``exact``: p values instead of the intervals.
    ``benchmarks``: those to show; empty for all.
    """

    against: str | None = None
    interval: str = resampling.DEFAULT
    exact: bool = False
    benchmarks: tuple[str, ...] = ()


DEFAULT = Choice()


@dataclass
class Table:
    """One model's results. ``grid[label][column]``; labels in the order of the rows, fullkv first."""

    model: str
    columns: list[Column]
    grid: dict[str, dict[Column, Value]]
    choice: Choice = DEFAULT
    footer: list[str] = field(default_factory=list)


def family(label: str) -> tuple[str, bool, str]:
    """A capacity's methods together, the plain one first."""
    method = label.split(" ")[0]
    return method.split("+")[0], "+" in method, label


def is_full(label: str) -> bool:
    return label.split(" ")[0] == "fullkv"
