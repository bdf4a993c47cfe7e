"""For a README or an issue."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvbench.analysis.tables.shape import Column, Table
from kvbench.analysis.tables.show import BEST, legend, parts


def to_markdown(item: Table) -> str:
    """One markdown table per benchmark and metric side by side in one row of headings."""

    def cell(label: str, column: Column) -> str:
        value, delta, interval = parts(item, label, column)
        best = item.grid[label][column].best
        shown = " ".join(
            [f"**{value}**" if best else value, delta.replace(BEST, "").replace("*", "\\*")]
        ).strip()
        return f"{shown}<br>{interval}" if interval else shown

    heads = [f"{escape(c.heading)} {c.budget or 'full'}" for c in item.columns]
    lines = [
        f"### {escape(item.model)}",
        "",
        f"| method | {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(heads)}",
    ]
    for label in item.grid:
        lines.append(f"| {escape(label)} | {' | '.join(cell(label, c) for c in item.columns)} |")
    lines += ["", *notes([legend(item, "bold:"), *item.footer])]
    return "\n".join(lines) + "\n"


def notes(lines: Sequence[str]) -> list[str]:
    """The legend as a sentence, notes as a list, commands (indented) as code that can be copied."""
    found = [escape(lines[0]), ""]
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
