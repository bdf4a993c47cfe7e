"""For a README or an issue."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvbench.rendering.record import Record, Shown

BEST = "●"  # the best value is bold here


def show(record: Record) -> str:
    """One table with every heading in its columns' names, or, of a record to split, one a group."""
    lines = [f"### {escape(record.title)}", ""]
    if record.split:
        for part in record.parted():
            lines += [f"#### {escape(part.title)}", "", *_table(part, part.groups[0].columns), ""]
    elif record.rows:
        lines += [*_table(record, record.columns), ""]
    return "\n".join([*lines, *_notes(record.notes)]).rstrip("\n") + "\n"


def _table(record: Record, names: Sequence[str]) -> list[str]:
    rule = ["---" if place < record.left else "---:" for place in range(len(names) + 1)]
    rows = [[escape(row.label), *map(_cell, row.cells)] for row in record.rows]
    return [f"| {' | '.join(cells)} |" for cells in [[*map(escape, [record.corner, *names])], rule, *rows]]


def _cell(cell: Shown) -> str:
    value = f"**{escape(cell.text)}**" if cell.best else escape(cell.text)
    shown = f"{value} {escape(cell.delta.replace(BEST, ''))}".strip()
    return f"{shown}<br>{escape(cell.below)}" if cell.below else shown


def _notes(lines: Sequence[str]) -> list[str]:
    """The legend as a sentence, notes as a list, commands (indented) as code that can be copied."""
    if not lines:
        return []
    found = [escape(lines[0].replace(BEST, "bold:")), ""]
    fenced = False
    for line in lines[1:]:
        if line.startswith("  ") != fenced:
            found.append("```")
            fenced = not fenced
        found.append(line.strip() if fenced else f"- {escape(line)}")
    return [*found, "```"] if fenced else found


def escape(text: str) -> str:
    """``text`` so that markdown shows it, in a table's cell as well."""
    return re.sub(r"([\\|*])", r"\\\1", text).replace("<", "&lt;").replace("\n", " ")
