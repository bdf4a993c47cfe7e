"""A paper's table with what a store measured: each published value beside ours, its interval and the gap.

Methods down, benchmarks x budgets across, and under each of these measured, 95 % CI, paper, difference.
A value that the store lacks is a hole beside the published one; the commands below fill the holes.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from kvbench import reference
from kvbench.analysis.published import Beside, from_answers, pairs, real
from kvbench.analysis.results import Entry
from kvbench.analysis.tables import fill, rounding
from kvbench.analysis.tables.footer import broken, old, realised, samples
from kvbench.analysis.tables.shape import Column
from kvbench.errors import UserError
from kvbench.planning.config import benchmark_file
from kvbench.planning.experiments import Experiment
from kvbench.reference import sizes
from kvbench.rendering import MISSING, Heading, Record, Row, Shown
from kvbench.rendering.csv import lines as csv_lines

PARTS = ("measured", "95 % CI", "paper", "difference")
LEGEND = (
    "measured: this store, with its 95 % interval (t over pages or pictures); paper: the published value;"
    " difference: measured - paper, * where the published value lies outside the interval; ! the paper"
    " contradicts itself."
)
COLUMNS = ["paper", "table", "model", "benchmark", "metric", "method", "setting", "budget", "unit"]
COLUMNS += ["measured", "ci_low", "ci_high", "published", "difference", "n", "clusters"]
COLUMNS += ["kept_mean", "kept_min", "kept_max", "digest", "flag"]


def beside(found: Sequence[Entry], experiment: Experiment) -> list[Beside]:
    """The published values that answers can give, each with what the store has of it.

    Raises UserError where the experiment is no paper's table or the store has none of its cells.
    """
    if not experiment.paper:
        raise UserError(f"{experiment.name} is not a table of a paper, so nothing stands beside it.")
    where = f"{experiment.paper} table {experiment.table}"
    rows = from_answers(experiment.published())
    if not rows:
        raise UserError(
            f"{where} prints memory and times: `kvbench bench efficiency` measures those, answers do not."
        )
    result = pairs(rows, found)
    if not any(pair.measured for pair in result):
        scored = any(entry.scores is not None for entry in found)
        why = _unlike(rows, found) if scored else "no cell is scored yet"
        raise UserError(f"nothing here stands beside {where}: {why}; fill it with `{experiment.command}`.")
    return result


def _unlike(rows: Sequence[reference.PublishedValue], found: Sequence[Entry]) -> str:
    """What tells the store's cells from the table's."""
    for name in ("model", "benchmark"):
        theirs = list(dict.fromkeys(getattr(row, name) for row in rows))
        ours = list(dict.fromkeys(getattr(entry.cell, name) for entry in found))
        if not set(theirs) & set(ours):
            return f"the paper's {name} is {' or '.join(theirs)}, the store's {' and '.join(ours)}"
    if not any(real(entry.cell) for entry in found):
        return "its cells are of random weights or of micro data"
    return "no cell has the model, benchmark, method, budget and options of one of its values"


def records(
    found: Sequence[Entry], shown: Sequence[Beside], experiment: Experiment, store: Path
) -> list[Record]:
    """One record per model that the store has a value of; the others are named under the last one."""
    result, idle = [], []
    for model in dict.fromkeys(pair.published.model for pair in shown):
        mine = [pair for pair in shown if pair.published.model == model]
        if any(pair.measured for pair in mine):
            result.append(_record(found, mine, experiment, store))
        else:
            idle.append(model)
    if idle:
        where = shlex.quote(fill.word("store", str(store)))
        command = f"{experiment.command} model={','.join(idle)} {where}"
        result[-1].notes += [f"not run here: {', '.join(idle)}; to run:", f"  {command}"]
    return result


def _record(found: Sequence[Entry], mine: Sequence[Beside], experiment: Experiment, store: Path) -> Record:
    published = [pair.published for pair in mine]
    heads = [
        (key, budget)
        for key in dict.fromkeys(map(_column, published))
        for budget in dict.fromkeys(row.budget for row in published if _column(row) == key and row.budget)
    ]
    grid: dict[str, dict[object, tuple[Shown, ...]]] = {_label(row): {} for row in published}
    for pair in mine:
        row = pair.published
        for key, budget in heads:
            # What keeps everything has one value for all budgets.
            if key == _column(row) and row.budget in (None, budget):
                grid[_label(row)][key, budget] = _cells(pair)
    nothing = (Shown(),) * len(PARTS)  # the paper prints no value
    rows = [Row(label, sum((row.get(head, nothing) for head in heads), ())) for label, row in grid.items()]
    title = reference.entry(experiment.paper, experiment.table)["title"]
    name = f"{experiment.paper} table {experiment.table}: {title}, {published[0].model}"
    groups = [Heading(f"{_heading(*key)}, {budget}", PARTS) for key, budget in heads]
    return Record(name, groups, rows, [LEGEND, *_notes(found, mine, experiment, store)], split=True)


def _column(row: reference.PublishedValue) -> tuple[str, str, str]:
    return row.benchmark, row.metric, row.unit


def _heading(benchmark: str, metric: str, unit: str) -> str:
    title = benchmark_file(benchmark).get("title") or benchmark
    return Column(benchmark, title, metric, 1, 0).heading + (" [%]" if unit == "%" else "")


def _label(row: reference.PublishedValue) -> str:
    return f"{row.method} {row.setting}".strip()


def _cells(pair: Beside) -> tuple[Shown, ...]:
    """The four parts with the digits that the paper prints."""
    row, found = pair.published, pair.measured
    digits = len(row.value.partition(".")[2])
    paper = Shown(row.value + (" !" if row.flag else ""), sort=row.number)
    if found is None:
        return Shown(MISSING), Shown(), paper, Shown()
    interval = (
        f"[{found.low:.{digits}f}, {found.high:.{digits}f}]" if math.isfinite(found.low) else "no interval"
    )
    measured = Shown("n/a")
    if math.isfinite(found.value):
        measured = Shown(f"{found.value:.{digits}f}", sort=found.value)
    gap = Shown()
    if math.isfinite(pair.difference):
        gap = Shown(f"{pair.difference:+.{digits}f}{'*' if pair.significant else ''}", sort=pair.difference)
    return measured, Shown(interval), paper, gap


def _notes(found: Sequence[Entry], mine: Sequence[Beside], experiment: Experiment, store: Path) -> list[str]:
    """Samples, realised entries, contradictions, what else the store holds, commands for the holes."""
    used = {pair.entry.cell.digest: pair.entry for pair in mine if pair.entry is not None}
    here = list(used.values())
    lines = (
        samples(here, dict.fromkeys(entry.cell.benchmark for entry in here))
        + realised(here)
        + rounding.lines(here)
        + broken(here)
    )
    lines += [f"! {_label(row)}, {row.benchmark}: {row.flag}." for row in _flagged(mine)]
    lines += dict.fromkeys(
        f"{pair.published.benchmark}: subset not printed ({why}), so no difference is drawn."
        for pair in mine
        if (why := sizes.subset(pair.published))
    )
    lines += dict.fromkeys(
        f"{cell.benchmark}: subset={cell.config['benchmark']['subset']} here; the paper names no such subset."
        for cell in (entry.cell for entry in here)
        if cell.config["benchmark"].get("subset", "full")
        not in ("full", benchmark_file(cell.benchmark).get("subset"))  # Video-MME: the papers' own
    )
    model = mine[0].published.model
    others = sum(entry.cell.model == model and entry.cell.digest not in used for entry in found)
    if others:
        lines.append(f"{others} cell{'s' * (others > 1)} of {model} in {store} are not in the paper's table.")
    rows = reference.rows(experiment.paper, experiment.table)
    unmeasured = sorted({row.metric for row in rows} - {row.metric for row in from_answers(rows)})
    if unmeasured:
        lines.append(
            f"{' and '.join(unmeasured)} of the paper's table: `kvbench bench efficiency` measures them."
        )
    lines += old(model, store)
    holes = _commands(found, mine, experiment, store)
    if not holes:
        return lines
    named = fill.files(e.cell for e in found if e.cell.model == model) if "=FILE" in " ".join(holes) else []
    return [*lines, f"{MISSING} is missing; to fill:", *(f"  {line}" for line in holes), *named]


def _flagged(mine: Sequence[Beside]) -> list[reference.PublishedValue]:
    return [pair.published for pair in mine if pair.published.flag]


def _commands(
    found: Sequence[Entry], mine: Sequence[Beside], experiment: Experiment, store: Path
) -> list[str]:
    """The experiment on the benchmarks with holes, with the samples and overrides of their other cells."""
    counts: dict[str, int] = {}
    for pair in mine:
        if pair.entry is not None:
            counts[pair.published.benchmark] = pair.entry.scores.n
    model = mine[0].published.model
    here = {entry.cell.benchmark: entry.cell for entry in found if entry.cell.model == model}
    holes: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for pair in mine:
        name = pair.published.benchmark
        if pair.measured is None and name in experiment.benchmarks:
            other = next(iter(here.values()), None)  # which tells how the model was run
            words = fill.of_job(here[name]) if name in here else []
            if name not in here and other is not None:
                words = fill.of_job(other, groups=["model"])
            names = holes.setdefault((counts.get(name, 0), tuple(words)), [])
            names += [name] if name not in names else []
    return [
        " ".join(
            [experiment.command, f"model={model}", f"benchmark={','.join(names)}", *map(shlex.quote, words)]
            + ([f"limit={limit}"] if limit else [])
            + [shlex.quote(fill.word("store", str(store)))]
        )
        for (limit, words), names in holes.items()
    ]


def to_csv(shown: Sequence[Beside]) -> str:
    """One row a published value, numbers unrounded; empty where nothing is measured."""
    rows = []
    for pair in shown:
        row, found, entry = pair.published, pair.measured, pair.entry
        ours = (found.value, found.low, found.high) if found else (None,) * 3
        counts = (found.n, found.clusters) if found else (None,) * 2
        kept = [entry.kept[key] for key in ("mean", "min", "max")] if entry and entry.kept else [None] * 3
        digest = entry.cell.digest if entry else None
        line = [getattr(row, name) for name in COLUMNS[:9]]
        rows.append([*line, *ours, row.value, pair.difference, *counts, *kept, digest, row.flag])
    return csv_lines(COLUMNS, rows)
