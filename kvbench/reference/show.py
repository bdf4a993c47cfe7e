"""Published values as CSV (tidy) and, in any other format, in tables of the shape of the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.reference import TIDY, PublishedValue, entry, sizes
from kvbench.rendering import Record, plain, render
from kvbench.rendering.csv import lines as csv_lines

SUBSET = "†"  # of a set whose size is not printed


def show(rows: Sequence[PublishedValue], format: str) -> str:
    """A table per table of a paper; as CSV, one row a value.

    Differences that the paper prints stand beside the values in parentheses.
    """
    if format == "csv":
        return to_csv(rows)
    tables: dict[tuple[str, str], list[PublishedValue]] = {}
    for row in rows:
        tables.setdefault((row.paper, row.table), []).append(row)
    return render([_record(*name, found) for name, found in tables.items()], format)


def to_csv(rows: Sequence[PublishedValue]) -> str:
    """One row a value; ``budget`` is empty for what keeps everything, ``subset`` for what may be of all."""
    fields = ([*(getattr(row, name) for name in TIDY), sizes.subset(row)] for row in rows)
    return csv_lines([*TIDY, "subset"], fields)


def _record(paper: str, table: str, rows: Sequence[PublishedValue]) -> Record:
    described = entry(paper, table)
    flags: list[str] = []
    title = f"{paper} {'text' if table == 'text' else f'table {table}'}: {described['title']}"
    columns, shown, left = _listed(rows, flags) if table == "text" else _grid(rows, flags)
    notes = [described["note"]] if "note" in described else []
    if any(row.is_upper_bound for row in rows):
        notes.append("fullkv keeps everything: the upper bound.")
    notes += dict.fromkeys(
        f"{SUBSET} {row.model} {row.benchmark} {row.metric}: subset not printed ({why})."
        for row in rows
        if (why := sizes.subset(row))
    )
    notes += [f"[{number}] {flag}" for number, flag in enumerate(flags, 1)]
    return plain(title, columns, shown, notes, left)


def _grid(rows: Sequence[PublishedValue], flags: list[str]) -> tuple[list[str], list[list[str]], int]:
    """Names of the columns, rows, and how many of the first columns hold words."""
    keys = ("model", "method", "setting", "budget")
    columns = list(dict.fromkeys(map(_column, rows)))
    lines: dict[tuple[str, ...], dict[tuple[str, str, str], PublishedValue]] = {}
    for row in rows:
        lines.setdefault(_texts(row, keys), {})[_column(row)] = row
    shown = [i for i in range(len(keys)) if any(key[i] for key in lines)]
    names = [keys[i] for i in shown] + [_heading(column) for column in columns]
    cells = [
        [key[i] for i in shown]
        + [_cell(found[column], flags) if column in found else "" for column in columns]
        for key, found in lines.items()
    ]
    return names, cells, len(shown)


def _listed(rows: Sequence[PublishedValue], flags: list[str]) -> tuple[list[str], list[list[str]], int]:
    """A line a value, for values that share no columns."""
    keys = ("model", "benchmark", "metric", "method", "setting", "budget")
    return [*keys, "value", "unit"], [[*_texts(r, keys), _cell(r, flags), r.unit] for r in rows], len(keys)


def _texts(row: PublishedValue, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple("" if getattr(row, key) is None else str(getattr(row, key)) for key in keys)


def _column(row: PublishedValue) -> tuple[str, str, str]:
    return row.benchmark, row.metric, row.unit


def _heading(column: tuple[str, str, str]) -> str:
    benchmark, metric, unit = column
    return " ".join(
        part for part in (benchmark, metric, f"[{unit}]" if unit not in ("", "1") else "") if part
    )


def _cell(row: PublishedValue, flags: list[str]) -> str:
    text = f"{row.value} ({row.delta})" if row.delta else row.value
    text += f" {SUBSET}" if sizes.subset(row) else ""
    if row.flag:
        flags.append(
            f"{row.model} {row.benchmark} {row.method} {row.budget or ''}".strip() + f": {row.flag}."
        )
        text += f" [{len(flags)}]"
    return text
