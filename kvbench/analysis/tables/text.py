"""For the terminal (rich)."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.analysis.tables.shape import Column, Table, family, is_full
from kvbench.analysis.tables.show import groups, legend, parts


@dataclass
class _Layout:
    """Widths of one group of columns: value, difference and the whole cell."""

    columns: list[Column]
    value: int
    cell: int

    @property
    def width(self) -> int:
        return (self.cell + _GAP) * len(self.columns)


_GAP = 2  # blanks before each column


def _layout(item: Table, columns: list[Column]) -> _Layout:
    shown = [parts(item, label, column) for label in item.grid for column in columns]
    value = max(len(part[0]) for part in shown)
    delta = max(len(part[1]) for part in shown)
    cell = max(value + 1 + delta if delta else value, max(len(part[2]) for part in shown))
    heading = -(-len(columns[0].heading) // len(columns))  # a long heading widens its columns evenly
    return _Layout(columns, value, max(cell, heading))


class Strip:
    """Lines of a terminal ``width`` columns wide (None: as wide as it is), collected in ``text``."""

    def __init__(self, width: int | None = None) -> None:
        from rich.console import Console

        self.width = width or max(60, shutil.get_terminal_size((100, 24)).columns)
        self._out = io.StringIO()
        self._console = Console(
            file=self._out, width=self.width, force_terminal=sys.stdout.isatty(), highlight=False
        )

    def line(self, line: Any) -> None:
        """One line of a table: text of rich, or a plain one; it is never folded."""
        self._console.print(line, soft_wrap=True, markup=False)

    def notes(self, lines: Sequence[str]) -> None:
        """Sentences, folded; a command (indented) stays on one line, or it cannot be copied."""
        from rich.text import Text

        for line in lines:
            self._console.print(Text(line, style="dim"), soft_wrap=line.startswith("  "))

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._out.getvalue().split("\n"))


def to_text(item: Table, width: int | None = None) -> str:
    """For the terminal: as many benchmarks side by side as fit, further ones in blocks below."""
    from rich.text import Text

    page = Strip(width)
    names = max(len(label) for label in item.grid)
    blocks: list[list[_Layout]] = []
    used = page.width
    for columns in groups(item.columns):
        layout = _layout(item, columns)
        if used + 1 + layout.width > page.width:
            blocks.append([])
            used = names
        blocks[-1].append(layout)
        used += 1 + layout.width
    lines = [Text(item.model, style="bold")]
    for block in blocks:
        lines += ["", *_block(item, block, names)]
    lines.append("")
    for line in lines:
        page.line(line)
    page.notes([legend(item), *item.footer])
    return page.text


def _block(item: Table, block: list[_Layout], names: int) -> list[Any]:
    """Lines of one block: headings over their columns, budgets, then the methods."""
    from rich.text import Text

    def spread(texts: Sequence[str], rule: str = " ") -> str:
        return "".join(
            " " * (_GAP + 1) + text.center(layout.width - _GAP, rule)
            for text, layout in zip(texts, block, strict=True)
        )

    lines: list[Any] = [
        Text(" " * names + spread([layout.columns[0].heading for layout in block]), style="bold"),
        Text(" " * names + spread(["─" * (layout.width - _GAP) for layout in block])),
    ]
    budgets = Text("method".ljust(names), style="bold")
    for layout in block:
        budgets.append(" ")
        for column in layout.columns:
            text = str(column.budget or "full").rjust(layout.value)
            budgets.append(" " * _GAP + text.ljust(layout.cell))
    lines.append(budgets)
    previous = None
    for label, row in item.grid.items():
        capacity = family(label)[0]
        if previous is not None and capacity != previous:
            lines.append("")
        previous = capacity
        first, second = Text(label.ljust(names)), Text(" " * names)
        for layout in block:
            first.append(" ")
            second.append(" ")
            if is_full(label):
                value = parts(item, label, layout.columns[0])[0]
                first.append(" " * _GAP + value.center(layout.width - _GAP))
                continue
            for column in layout.columns:
                value, delta, interval = parts(item, label, column)
                text = f"{value.rjust(layout.value)} {delta}".ljust(layout.cell)
                first.append(" " * _GAP)
                first.append(text, style="bold green" if row[column].best else "")
                second.append(" " * _GAP + interval.ljust(layout.cell), style="dim")
        lines.append(first)
        if second.plain.strip():
            lines.append(second)
    return lines
