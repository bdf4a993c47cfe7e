"""For a README or an issue."""

from __future__ import annotations

from kvbench.analysis.tables.shape import Column, Table
from kvbench.analysis.tables.show import BEST, LEGEND, parts


def to_markdown(item: Table) -> str:
    """One markdown table per benchmark and metric side by side in one row of headings."""

    def cell(label: str, column: Column) -> str:
        value, delta, interval = parts(label, column, item.grid[label][column])
        best = item.grid[label][column].best
        shown = " ".join(
            [f"**{value}**" if best else value, delta.replace(BEST, "").replace("*", "\\*")]
        ).strip()
        return f"{shown}<br>{interval}" if interval else shown

    heads = [f"{_escape(c.heading)} {c.budget or 'full'}" for c in item.columns]
    lines = [
        f"### {_escape(item.model)}",
        "",
        f"| method | {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(heads)}",
    ]
    for label in item.grid:
        lines.append(f"| {_escape(label)} | {' | '.join(cell(label, c) for c in item.columns)} |")
    lines += ["", LEGEND.replace("*", "\\*").format(best="**bold**"), ""]
    fenced = False
    for line in item.footer:
        if line.startswith("  ") and not fenced:
            lines.append("```")
            fenced = True
        lines.append(line.strip() if fenced else f"- {_escape(line)}")
    if fenced:
        lines.append("```")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
