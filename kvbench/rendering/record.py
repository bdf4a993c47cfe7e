"""What is shown, whatever the format: a title, groups of columns, rows of cells, notes.

Of a table with headings over its columns (``grid``) the cells are short and every format keeps them on one
line; of any other they may be sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MISSING = "—"


class Shown(NamedTuple):
    """One value: ``delta`` stands behind it, ``below`` in small type under it; ``sort`` orders a web page."""

    text: str = ""
    delta: str = ""
    below: str = ""
    best: bool = False
    sort: float | None = None


class Heading(NamedTuple):
    """Columns side by side under one heading."""

    heading: str
    columns: tuple[str, ...]


class Row(NamedTuple):
    """A label and a cell a column; ``spans``: those of a group repeat one value. ``apart``: after a gap."""

    label: str
    cells: tuple[Shown, ...]
    spans: bool = False
    apart: bool = False


@dataclass
class Record:
    """``corner`` stands over the labels; the first note is the legend, indented ones are commands.

    ``left``: how many columns, the labels among them, hold words; the others hold numbers. ``even``: the
    columns of a group are equally wide. ``split``: formats of a page's width show one group a table.
    """

    title: str
    groups: list[Heading]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    corner: str = "method"
    left: int = 1
    even: bool = False
    split: bool = False

    @property
    def grid(self) -> bool:
        return any(group.heading for group in self.groups)

    @property
    def columns(self) -> list[str]:
        """Every column with what stands over it."""
        return [f"{group.heading} {name}".strip() for group in self.groups for name in group.columns]

    def parted(self) -> list[Record]:
        """A record a group, each with the rows that say something there."""
        found, at = [], 0
        for group in self.groups:
            end = at + len(group.columns)
            rows = [row._replace(cells=row.cells[at:end]) for row in self.rows]
            rows = [row for row in rows if any(cell.text for cell in row.cells)]
            found.append(Record(group.heading, [group], rows, [], self.corner, self.left, self.even))
            at = end
        return found


def plain(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    left: int = 1,
) -> Record:
    """A record of strings, the first column as labels. left: columns that hold words, see ``Record``."""
    lines = [Row(first, tuple(map(Shown, rest))) for first, *rest in rows]
    return Record(title, [Heading("", tuple(columns[1:]))], lines, list(notes), columns[0], left)
