"""What stands under a table: samples, realised entries, warnings, and the commands that fill holes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from kvbench.analysis.resampling import FEWEST, ROUGH
from kvbench.analysis.results import Entry
from kvbench.analysis.tables import fill, rounding
from kvbench.analysis.tables.shape import Table
from kvbench.errors import UserError, first_line
from kvbench.rendering import MISSING
from kvbench.store import earlier, every_cell, load_folder
from kvbench.support.words import counted

HIGH = 0.95  # of the maximum: above, few samples differ


def footer(result: Table, mine: Sequence[Entry], benchmarks: Iterable[str], store: Path) -> list[str]:
    """Samples, realised entries, what to mind, and the commands (indented) that fill the holes."""
    lines = samples(mine, benchmarks) + chance(result) + ceiling(result) + realised(mine)
    lines += rounding.lines(mine)
    lines += _other_windows(result)
    lines += dict.fromkeys(v.trouble for row in result.grid.values() for v in row.values() if v.trouble)
    lines += broken(mine)
    lines += old(result.model, store)
    lines += fill.impossible(result, mine) + failed(mine)
    holes = fill.commands(result, mine, store)
    if holes:
        lines.append(f"{MISSING} is missing; to fill:")
        lines += [f"  {command}" for command in holes]
        lines += fill.files(e.cell for e in mine) if any("=FILE" in command for command in holes) else []
    return lines


def samples(mine: Sequence[Entry], benchmarks: Iterable[str]) -> list[str]:
    """How many samples, and pages or pictures, each benchmark's scores are from."""
    lines = []
    for benchmark in benchmarks:
        counts = sorted({e.scores.n for e in mine if e.cell.benchmark == benchmark and e.scores is not None})
        number = " or ".join(str(n) for n in counts) if counts else "no"
        lines.append(f"{benchmark}: {number} sample{'' if counts == [1] else 's'}")
        scored = [e.scores for e in mine if e.cell.benchmark == benchmark and e.scores is not None]
        pages = min((len(set(scores.clusters.values())) for scores in scored if scores.clusters), default=0)
        pages = pages or min(counts, default=0)
        if 0 < pages < FEWEST:
            note = f"fewer than {FEWEST} have no interval and no mark"
        elif 0 < pages < ROUGH:
            note = f"intervals from fewer than {ROUGH} are rough"
        else:
            continue
        lines.append(f"{benchmark}: pages or pictures asked about: {pages}; {note}; raise limit=.")
    return lines


def chance(result: Table) -> list[str]:
    """How many of the table's marks chance alone would give."""
    judged = [v for row in result.grid.values() for v in row.values() if v.gap and math.isfinite(v.gap.low)]
    if not judged:
        return []
    expected = 0.05 * len(judged)
    many = f"about {expected:.0f}" if expected >= 1.5 else "one" if expected >= 0.75 else "less than one"
    marked = sum(value.gap.significant for value in judged)
    return [f"* {marked} of {len(judged)} differences; chance alone would mark {many} (5 %)."]


def ceiling(result: Table) -> list[str]:
    """Where values are so near the maximum that their intervals say little."""
    lines = []
    for benchmark in dict.fromkeys(column.benchmark for column in result.columns):
        high = [
            value
            for row in result.grid.values()
            for column, value in row.items()
            if column.benchmark == benchmark and value.gap and column.maximum
            if value.value is not None and value.value > HIGH * column.maximum
        ]
        if high:
            lines.append(
                f"{benchmark}: {counted(len(high), 'value')} above {100 * HIGH:.0f} % of the maximum, where"
                " so few samples differ that an interval may be too short: no mark is no proof of equality."
            )
    return lines


def realised(mine: Sequence[Entry]) -> list[str]:
    """Realised entries per layer and KV head of every method and budget, methods that are alike in one line.

    ``64: 62.1 to 62.7, heads 10 to 439``: lowest and highest mean of a benchmark, then single heads.
    """
    alike: dict[str, list[str]] = {}
    for label in dict.fromkeys(e.label for e in mine):
        here = [e for e in mine if e.label == label and e.kept and e.scores is not None and e.scores.n]
        budgets = sorted({e.cell.budget or 0 for e in here}, reverse=True)
        shown = [f"{budget or 'full'}: {_kept(here, budget or None)}" for budget in budgets]
        if shown:
            alike.setdefault(", ".join(shown), []).append(label)
    return [f"realised entries per head, {', '.join(labels)}: {shown}" for shown, labels in alike.items()]


def _kept(here: Sequence[Entry], budget: int | None) -> str:
    kept = [e.kept for e in here if e.cell.budget == budget]
    means = sorted({f"{k['mean']:.1f}" for k in kept}, key=float)
    text = means[0] if len(means) == 1 else f"{means[0]} to {means[-1]}"
    low, high = min(k["min"] for k in kept), max(k["max"] for k in kept)
    return text if low == high else f"{text} (heads {low} to {high})"


def _other_windows(result: Table) -> list[str]:
    """Differences whose base has another observation window: part of them may be the window's."""
    found = [
        f"{label} (window {value.entry.window}) is compared with {value.base.label} "
        f"(window {value.base.window}): the nearest there is."
        for label, row in result.grid.items()
        for value in row.values()
        if value.gap is not None and value.base is not None
        if value.base.window not in (None, value.entry.window)  # fullkv has none
    ]
    return list(dict.fromkeys(found))


def broken(mine: Sequence[Entry]) -> list[str]:
    """What scoring warned of, and scores that are not numbers."""
    found = [warning for e in mine if e.scores is not None for warning in e.scores.warnings]
    for entry in mine:
        for metric, values in (entry.scores.per_sample if entry.scores else {}).items():
            bad = sum(not math.isfinite(value) for value in values.values())
            if bad:
                found.append(
                    f"{entry.label} on {entry.cell.benchmark}: {metric} is not a number for {bad} samples."
                )
    return list(dict.fromkeys(found))


def failed(mine: Sequence[Entry]) -> list[str]:
    """Why a cell without a score will not get one by the same command again, by its first such sample."""
    read = cache(load_folder)
    lines = []
    for entry in (entry for entry in mine if entry.scores is None):
        try:
            records = read(entry.cell.folder).failed(entry.cell.digest)
        except UserError:
            continue  # a damaged journal, of which scoring has spoken
        for index, record in sorted(records.items()):
            own = record["error"]["type"] == "MethodError"
            if own or record.get("permanent"):
                why = first_line(Exception(record["error"]["message"])).rstrip(".")
                way = "" if own else "; benchmark.unreadable=exclude leaves it out of all cells"
                lines.append(
                    f"{entry.label} on {entry.cell.benchmark}: sample {index} fails again: {why}{way}."
                )
                break
    return list(dict.fromkeys(lines))


def old(model: str, store: Path) -> list[str]:
    """What a model's methods of an earlier source answered, which no table shows."""
    said = earlier.notice(cell for cell in every_cell(store) if cell.model == model)
    return [said] if said else []
