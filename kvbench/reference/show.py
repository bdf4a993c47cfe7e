"""Published values as CSV (tidy) and as Markdown (a table in the shape of the paper's)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from kvbench.reference import TIDY, PublishedValue, entry, sizes

SUBSET = "†"  # of a set whose size is not printed

FORMATS = ("markdown", "csv")


def to_csv(rows: Sequence[PublishedValue]) -> str:
    """One row a value; ``budget`` is empty for what keeps everything, ``subset`` for what may be of all."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*TIDY, "subset"))
    for row in rows:
        fields = (*(getattr(row, name) for name in TIDY), sizes.subset(row))
        writer.writerow("" if field is None else field for field in fields)
    return out.getvalue()


def to_markdown(rows: Sequence[PublishedValue]) -> str:
    """A section per table: methods and budgets down, benchmarks and metrics across.

    Differences that the paper prints stand beside the values in parentheses.
    """
    tables: dict[tuple[str, str], list[PublishedValue]] = {}
    for row in rows:
        tables.setdefault((row.paper, row.table), []).append(row)
    return "\n".join(_section(*name, found) for name, found in tables.items())


def _section(paper: str, table: str, rows: Sequence[PublishedValue]) -> str:
    described = entry(paper, table)
    flags: list[str] = []
    text = [f"## {paper} {'text' if table == 'text' else f'table {table}'}: {described['title']}", ""]
    text += _listed(rows, flags) if table == "text" else _grid(rows, flags)
    notes = [described["note"]] if "note" in described else []
    if any(row.is_upper_bound for row in rows):
        notes.append("fullkv keeps everything: the upper bound.")
    notes += dict.fromkeys(
        f"{SUBSET} {row.model} {row.benchmark} {row.metric}: subset not printed ({why})."
        for row in rows
        if (why := sizes.subset(row))
    )
    text += ["", *(f"- {note}" for note in notes)] if notes else []
    text += ["", *(f"{number}. {flag}" for number, flag in enumerate(flags, 1))] if flags else []
    return "\n".join(text) + "\n"


def _grid(rows: Sequence[PublishedValue], flags: list[str]) -> list[str]:
    keys = ("model", "method", "setting", "budget")
    columns = list(dict.fromkeys(map(_column, rows)))
    lines: dict[tuple[str, ...], dict[tuple[str, str, str], PublishedValue]] = {}
    for row in rows:
        lines.setdefault(_texts(row, keys), {})[_column(row)] = row
    shown = [i for i in range(len(keys)) if any(key[i] for key in lines)]
    text = [_line([keys[i] for i in shown] + [_heading(column) for column in columns])]
    text.append(_line(["---"] * len(shown) + ["---:"] * len(columns)))
    for key, found in lines.items():
        cells = [_cell(found[column], flags) if column in found else "" for column in columns]
        text.append(_line([key[i] for i in shown] + cells))
    return text


def _listed(rows: Sequence[PublishedValue], flags: list[str]) -> list[str]:
    """A line a value, for values that share no columns."""
    keys = ("model", "benchmark", "metric", "method", "setting", "budget")
    text = [_line([*keys, "value", "unit"]), _line(["---"] * len(keys) + ["---:", "---"])]
    return text + [_line([*_texts(row, keys), _cell(row, flags), row.unit]) for row in rows]


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


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
