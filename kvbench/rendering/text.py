"""For the terminal (rich)."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.rendering.record import Heading, Record, Row, Shown

_GAP = 2  # blanks before each column
_WORD = 32  # a name that is no longer is never folded


def to_text(record: Record, width: int | None = None) -> str:
    """As many groups of columns side by side as fit, further ones in blocks below; sentences are folded."""
    from rich.text import Text

    page = _Page(width)
    if record.title:
        page.line(Text(record.title, style="bold"))
    if record.grid:
        for block in _blocks(record, page.width):
            page.line("")
            for line in block.lines():
                page.line(line)
        page.line("")
    elif record.rows:
        page.folded(record)
    page.notes(record.notes)
    return page.text


class _Page:
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

    def folded(self, record: Record) -> None:
        """Columns without headings over them, sentences folded in their columns."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        rows = [[row.label, *(cell.text for cell in row.cells)] for row in record.rows]
        for place, (name, *cells) in enumerate(zip([record.corner, *record.columns], *rows, strict=True)):
            side = "left" if place < record.left else "right"
            word = max(map(len, cells)) <= _WORD and not any(" " in cell for cell in cells)
            head = name.replace(" ", "\n") if word and len(name) > _WORD // 2 else name
            table.add_column(head, justify=side, overflow="fold", no_wrap=word)
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print(table)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._out.getvalue().split("\n"))


@dataclass
class _Layout:
    """One group: where its cells stand in a row, and each column's widths: value, difference, whole cell."""

    group: Heading
    first: int
    widths: list[tuple[int, int, int]]

    @property
    def width(self) -> int:
        return sum(cell + _GAP for _, _, cell in self.widths)

    def of(self, row: Row) -> tuple[Shown, ...]:
        return row.cells[self.first : self.first + len(self.widths)]


def _layout(record: Record, group: Heading, first: int) -> _Layout:
    widths = []
    for place, name in enumerate(group.columns, first):
        cells = [row.cells[place] for row in record.rows]
        value = max(len(cell.text) for cell in cells)
        delta = max(len(cell.delta) for cell in cells)
        below = max(len(cell.below) for cell in cells)
        widths.append(
            (value, delta, max(value + bool(delta) + delta, below, 0 if record.even else len(name)))
        )
    if record.even:
        widths = [tuple(map(max, zip(*widths, strict=True)))] * len(widths)
    room = -(-len(group.heading) // len(widths))  # a long heading widens its columns evenly
    return _Layout(group, first, [(value, delta, max(cell, room)) for value, delta, cell in widths])


def _blocks(record: Record, width: int) -> Iterator[_Block]:
    """Groups in blocks no wider than ``width``, at least one each."""
    names = max(len(label) for label in [record.corner, *(row.label for row in record.rows)])
    used, first = width, 0
    block = _Block(record, names, [])
    for group in record.groups:
        layout = _layout(record, group, first)
        first += len(group.columns)
        if block.layouts and used + 1 + layout.width > width:
            yield block
            block = _Block(record, names, [])
        if not block.layouts:
            used = names
        block.layouts.append(layout)
        used += 1 + layout.width
    yield block


@dataclass
class _Block:
    """Groups that stand side by side, behind the labels."""

    record: Record
    names: int
    layouts: list[_Layout]

    def lines(self) -> Iterator[Any]:
        """Headings over their columns, the columns' names, then the rows."""
        from rich.text import Text

        yield Text(self._spread([layout.group.heading for layout in self.layouts]), style="bold")
        yield Text(self._spread(["─" * (layout.width - _GAP) for layout in self.layouts]))
        heads = self.record.corner.ljust(self.names)
        for layout in self.layouts:
            pairs = zip(layout.group.columns, layout.widths, strict=True)
            heads += " " + "".join(" " * _GAP + _right(name, widths) for name, widths in pairs)
        yield Text(heads, style="bold")
        shown = [
            row for row in self.record.rows if any(c.text for part in self.layouts for c in part.of(row))
        ]
        for number, row in enumerate(shown):
            if row.apart and number:
                yield ""
            yield from self._row(row)

    def _row(self, row: Row) -> Iterator[Any]:
        from rich.text import Text

        first, second = Text(row.label.ljust(self.names)), Text(" " * self.names)
        for layout in self.layouts:
            first.append(" ")
            second.append(" ")
            if row.spans:
                first.append(" " * _GAP + layout.of(row)[0].text.center(layout.width - _GAP))
                continue
            for cell, widths in zip(layout.of(row), layout.widths, strict=True):
                first.append(" " * _GAP)
                first.append(_right(cell.text, widths, cell.delta), style="bold green" if cell.best else "")
                second.append(" " * _GAP + cell.below.ljust(widths[2]), style="dim")
        yield first
        if second.plain.strip():
            yield second

    def _spread(self, texts: Sequence[str]) -> str:
        shown = [
            " " * (_GAP + 1) + text.center(layout.width - _GAP)
            for text, layout in zip(texts, self.layouts, strict=True)
        ]
        return " " * self.names + "".join(shown)


def _right(text: str, widths: tuple[int, int, int], delta: str = "") -> str:
    """A value at the right of its own width, its difference behind it; without any, at the right of all."""
    value, behind, cell = widths
    return f"{text.rjust(value)} {delta}".ljust(cell) if behind else text.rjust(cell)
