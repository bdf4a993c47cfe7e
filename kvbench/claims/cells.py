"""Measures of short answers, from the scored cells of a store, without the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.analysis import drift, policies
from kvbench.analysis.bootstrap import difference
from kvbench.analysis.results import Entry, entries
from kvbench.claims.row import Finding, Hole

if TYPE_CHECKING:
    import pandas

MODEL = "embedded"
TEXT = "longbench_mini"
MODELS = {TEXT: "smollm2"}  # of benchmarks without pages
QUESTIONS = ("docqa_mini", "textqa_mini", "chartqa_mini")
TIGHTEST, WINDOW = 32, 16  # budget and the embedded model's window


class Cells:
    """Scored cells and traces of a store, read when asked for."""

    def __init__(self, store: Path):
        self.store = store

    @cached_property
    def entries(self) -> list[Entry]:
        """Every cell; a benchmark has those of one model, see MODELS."""
        return [e for e in entries(self.store) if e.cell.model == MODELS.get(e.cell.benchmark, MODEL)]

    @cached_property
    def drift(self) -> drift.Drift:
        """Samples of every policy and what their traces hold."""
        return drift.load(self.store)

    def find(self, benchmark: str, method: str, budget: int | None, **options: Any) -> Entry:
        """The scored cell with these options and otherwise the usual ones. Raises Hole without one."""
        from kvbench import methods

        wanted = {"window": WINDOW, **options} if budget else options
        fitting = []
        for entry in self.entries:
            cell, mine = entry.cell, entry.cell.options
            if (cell.benchmark, cell.method, cell.budget) != (benchmark, method, budget):
                continue
            if entry.scores is None or any(mine.get(key) != value for key, value in wanted.items()):
                continue
            parts = zip(("capacity", "score"), methods.parse(cell.first) or (), strict=False)
            usual = {f"{k}.{o.name}": o.default for k, name in parts for o in methods.options(k, name)}
            unlike = sum(mine.get(k) != v for k, v in usual.items() if k in mine and k not in wanted)
            if unlike == 0:
                fitting.append(entry)
        if len(fitting) != 1:
            at = f" at budget {budget}" if budget else ""
            raise Hole(f"{'no' if not fitting else 'more than one'} scored {method}{at} on {benchmark}")
        return fitting[0]

    def policy(self, benchmark: str, policy: str) -> tuple[pandas.DataFrame, str]:
        """The selection of a benchmark and its policy's label. Raises Hole."""
        rows = self.drift.samples
        rows = rows[(rows["model"] == MODEL) & (rows["benchmark"] == benchmark)]
        for group in policies.groups(rows):
            label = policies.chosen(group, policy)
            if label is not None and len(policies.scored(policies.of(group, label))):
                return group, label
        raise Hole(f"no scored cell with refresh={policy} on {benchmark}")


def points(entry: Entry) -> dict[int, float]:
    """A cell's own metric by sample, in the units that tables show."""
    from kvbench.analysis.scoring import benchmark_config

    config = benchmark_config(entry.cell)
    values = entry.scores.per_sample.get(config["metric"], {})
    return {index: config.get("scale", 1) * value for index, value in values.items()}


Group = Mapping[str, Mapping[str, Any]]  # options by method


def gap(
    cells: Cells,
    first: Group,
    second: Group,
    benchmarks: Sequence[str] = QUESTIONS,
    budget: int | None = TIGHTEST,
) -> Finding:
    """Paired difference of two groups of cells, the mean over a group's cells, pooled over benchmarks.

    In points of the benchmarks' metrics; a page with its questions is resampled as a whole.
    """
    pooled: tuple[dict[int, float], dict[int, float]] = ({}, {})
    clusters: dict[int, str] = {}
    for number, benchmark in enumerate(benchmarks):
        shift = 1_000_000 * number  # keeps the benchmarks' samples apart
        for group, values in zip((first, second), pooled, strict=True):
            found = []
            for method, options in group.items():
                of = None if method == "fullkv" else budget
                found.append(cells.find(benchmark, method, of, **options))
            by_cell = [points(entry) for entry in found]
            for index in by_cell[0]:
                if all(index in mine for mine in by_cell):
                    values[shift + index] = sum(mine[index] for mine in by_cell) / len(by_cell)
                clusters[shift + index] = f"{benchmark} {found[0].scores.clusters.get(index, index)}"
    of_all = difference(*pooled, clusters=clusters)
    return Finding(of_all.delta, of_all.low, of_all.high, of_all.n, of_all.clusters)
