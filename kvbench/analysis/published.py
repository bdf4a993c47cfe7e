"""Which of a store's cells are those of a paper's table, and what they measured in its units."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench import reference
from kvbench.analysis.bootstrap import Estimate, labels
from kvbench.analysis.resampling import FEWEST, Linear, linearised
from kvbench.analysis.results import Entry, mean
from kvbench.analysis.scoring import benchmark_config
from kvbench.errors import UserError
from kvbench.methods import registry
from kvbench.methods.method import parse
from kvbench.planning.config import benchmark_file
from kvbench.reference import sizes
from kvbench.store import Cell

AVERAGE = "average"  # of a row's other values, as the papers work it out


@dataclass(frozen=True)
class Beside:
    """A published value and, where the store has its cell, what was measured in the same unit.

    ``entry`` is None for an average, which is that of several cells.
    """

    published: reference.PublishedValue
    measured: Estimate | None = None
    entry: Entry | None = None

    @property
    def difference(self) -> float:
        """Measured - published; NaN where nothing is measured or the published value is of a subset."""
        if self.measured is None or sizes.subset(self.published):
            return math.nan
        return self.measured.value - self.published.number

    @property
    def significant(self) -> bool:
        """Whether the published value lies outside the measured 95 % interval."""
        found, number = self.measured, self.published.number
        return not math.isnan(self.difference) and (number < found.low or number > found.high)


def from_answers(rows: Sequence[reference.PublishedValue]) -> list[reference.PublishedValue]:
    """The values that answers give; memory and times are measured by ``kvbench bench`` instead."""
    names = dict.fromkeys(row.benchmark for row in rows)
    metrics = {name: {AVERAGE, *(benchmark_file(name).get("metrics") or ())} for name in names}
    return [row for row in rows if row.metric in metrics[row.benchmark]]


def pairs(rows: Sequence[reference.PublishedValue], found: Sequence[Entry]) -> list[Beside]:
    """Every published value with what the store measured of it, in the order of ``rows``.

    Raises UserError for a value that several cells measure.
    """
    cells: dict[tuple, list[Entry]] = defaultdict(list)
    for entry in found:
        if real(entry.cell):
            cells[_key(entry.cell)].append(entry)
    result = [_pair(row, cells[_key(row)]) for row in rows]
    averages = _averages(result)
    return [averages.get(place, pair) for place, pair in enumerate(result)]


def real(cell: Cell) -> bool:
    """Whether a cell is of a trained model on its data set, not of random weights or a drawn handful."""
    config = cell.config
    return config["model"].get("weights") != "random" and config["benchmark"].get("data") != "micro"


def _key(named: object) -> tuple:
    """What a row of a table and a cell of a store share by name."""
    return tuple(getattr(named, name) for name in ("model", "benchmark", "method", "budget"))


def _pair(row: reference.PublishedValue, cells: Sequence[Entry]) -> Beside:
    alike = [entry for entry in cells if _same(row, entry)]
    if not alike:
        return Beside(row)
    if len(alike) > 1:
        names = ", ".join(entry.cell.digest for entry in alike)
        raise UserError(
            f"{row.method} on {row.benchmark} is measured by several cells ({names}): "
            "name a store=DIR that holds one of them."
        )
    (entry,) = alike
    scale = _scale(row, entry)
    interval = mean(entry, row.metric)
    value = scale * entry.scores.metrics[row.metric]
    n, clusters = (interval.n, interval.clusters) if interval.n else (entry.scores.n, 0)
    return Beside(row, Estimate(value, scale * interval.low, scale * interval.high, n, clusters), entry)


def _scale(row: reference.PublishedValue, entry: Entry) -> float:
    """From the metric's own unit to the paper's."""
    cfg = benchmark_config(entry.cell)
    usual = 100.0 if row.unit == "%" else 1.0
    return float(cfg.get("scale", usual)) if row.metric == cfg.get("metric") else usual


def _same(row: reference.PublishedValue, entry: Entry) -> bool:
    """Whether a cell is what the row is about; options that the row does not name are at their defaults."""
    cell = entry.cell
    asked = dict(row.options)
    if entry.scores is None or row.metric not in entry.scores.metrics:
        return False
    if cell.prompt != asked.pop("prompt", "default") or cell.config["method"].get("refresh"):
        return False
    options, usual = cell.options, _defaults(row.method)
    # A row names an option alone, as radius=3; a capacity and a score may both have a beta.
    names = {key: key.rpartition(".")[2] for key in usual}
    return set(asked) <= set(names.values()) and all(
        _text(options.get(key)) == asked.get(names[key], _text(value)) for key, value in usual.items()
    )


def _defaults(method: str) -> dict[str, object]:
    """Options of a method at their defaults: ``window``, ``capacity.ratio``, ``score.radius``, ..."""
    parsed = parse(method)
    if parsed is None:
        return {}
    found = {"window": registry.lookup("score", parsed[1]).default_window}
    for kind, name in zip(("capacity", "score"), parsed, strict=True):
        options = [option for option in registry.options(kind, name) if not option.runtime]
        found |= {f"{kind}.{option.name}": option.default for option in options}
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _averages(found: Sequence[Beside]) -> dict[int, Beside]:
    """Averages whose parts are all measured, by place in ``found``.

    Parts of other benchmarks (tasks) are independent, those of one benchmark (kinds of elements) may share
    pictures: their errors are summed picture by picture.
    """
    parts: dict[tuple, list[Beside]] = defaultdict(list)
    for pair in found:
        if pair.published.metric != AVERAGE:
            parts[_line(pair.published)].append(pair)
    wanted = {
        place: members
        for place, pair in enumerate(found)
        if pair.published.metric == AVERAGE and pair.measured is None
        for members in [parts[_line(pair.published)]]
        if members and all(member.measured is not None for member in members)
    }
    alike: dict[tuple, list[int]] = defaultdict(list)
    for place, members in wanted.items():
        alike[tuple((one.published.benchmark, one.published.metric) for one in members)].append(place)
    result = {}
    for places in alike.values():
        low, high = _average_intervals([wanted[place] for place in places])
        for column, place in enumerate(places):
            measured = [member.measured for member in wanted[place]]
            value = sum(one.value for one in measured) / len(measured)
            counts = (sum(one.n for one in measured), sum(one.clusters for one in measured))
            result[place] = Beside(
                found[place].published, Estimate(value, low[column], high[column], *counts)
            )
    return result


def _line(row: reference.PublishedValue) -> tuple:
    return row.model, row.method, row.budget, row.setting


def _average_intervals(lines: Sequence[Sequence[Beside]]) -> np.ndarray:
    """95 % t intervals [2, k] of the averages of k lines with the same parts; NaN where a part has none.

    Errors of benchmarks add up with the degrees of freedom of Welch (1947) and Satterthwaite.
    """
    parts = list(zip(*lines, strict=True))
    samples: dict[str, set[int]] = defaultdict(set)  # by benchmark, those of all its parts
    for members in parts:
        for one in members:
            samples[one.entry.cell.benchmark] |= set(_values(one))
    found: dict[str, list[Linear]] = defaultdict(list)
    for members in parts:
        series = [_values(one) for one in members]
        if (
            any(set(one) != set(series[0]) for one in series)
            or min(m.measured.clusters for m in members) < FEWEST
        ):
            return np.full((2, len(lines)), math.nan)
        entry = members[0].entry
        order = sorted(samples[entry.cell.benchmark])
        groups = labels(order, entry.scores.clusters)
        present = np.array([float(index in series[0]) for index in order])
        values = np.array([[one.get(index, 0.0) for one in series] for index in order])
        scale = np.array([_scale(one.published, one.entry) for one in members])
        part = linearised(values, groups, present)
        share = scale / len(parts)
        found[entry.cell.benchmark].append(Linear(share * part.means, share * part.errors, part.df))
    errors = [sum(part.errors for part in each) for each in found.values()]
    variances = np.array([(one**2).sum(0) for one in errors])
    freedom = np.array([np.min([part.df for part in each], axis=0) for each in found.values()])
    total = variances.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        df = np.where(total > 0, total**2 / (variances**2 / freedom).sum(0), freedom.min(0))
    means = sum(part.means for each in found.values() for part in each)
    return Linear(means, np.sqrt(total)[None], df).interval()


def _values(pair: Beside) -> dict[int, float]:
    return dict(pair.entry.scores.per_sample.get(pair.published.metric, {}))
