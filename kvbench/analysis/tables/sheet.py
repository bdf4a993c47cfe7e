"""A table whose columns come in fours, in every format: measured, 95 % CI, paper, difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kvbench.analysis.tables import html, latex, markdown, text

if TYPE_CHECKING:
    from kvbench.analysis.published import Beside

PARTS = ("measured", "95 % CI", "paper", "difference")
LATEX_HEADS = 2  # of a page's width
_GAP = 2  # blanks between columns


class Head(NamedTuple):
    """What stands over four columns: benchmark with metric, and budget."""

    heading: str
    budget: int
    key: tuple[str, str, str]  # benchmark, metric, unit

    @property
    def title(self) -> str:
        return f"{self.heading}, {self.budget}"


@dataclass(frozen=True)
class Quad:
    """The four parts as shown, and the numbers behind them."""

    measured: str
    interval: str
    paper: str
    difference: str
    pair: Beside | None

    @property
    def shown(self) -> tuple[str, str, str, str]:
        return self.measured, self.interval, self.paper, self.difference


EMPTY = Quad("", "", "", "", None)  # the paper prints no value


@dataclass
class Sheet:
    """``grid[label][head]``; the first of ``notes`` is the legend, indented ones are commands."""

    title: str
    heads: list[Head]
    grid: dict[str, dict[Head, Quad]]
    notes: list[str]

    def rows(self, heads: Sequence[Head]) -> Iterator[tuple[str, list[Quad]]]:
        """Lines that have a value under one of these heads."""
        for label, row in self.grid.items():
            quads = [row.get(head, EMPTY) for head in heads]
            if any(quad is not EMPTY for quad in quads):
                yield label, quads


def to_text(sheet: Sheet, width: int | None = None) -> str:
    """For the terminal: as many heads side by side as fit, further ones in blocks below."""
    from rich.text import Text

    page = text.Strip(width)
    page.line(Text(sheet.title, style="bold"))
    names = max(len(label) for label in ["method", *sheet.grid])
    widths = {head: _widths(sheet, head) for head in sheet.heads}
    for block in _fitting(sheet.heads, page.width - names, lambda head: sum(widths[head]) + 4 * _GAP):
        spans = [sum(widths[head]) + 3 * _GAP for head in block]
        page.line("")
        for over in ([head.title for head in block], ["─" * span for span in spans]):
            cells = [title.center(span) for title, span in zip(over, spans, strict=True)]
            page.line(Text((" " * _GAP).join([" " * names, *cells]), style="bold"))
        page.line(Text(_line("method".ljust(names), [PARTS] * len(block), block, widths), style="bold"))
        for label, quads in sheet.rows(block):
            page.line(_line(label.ljust(names), [quad.shown for quad in quads], block, widths))
    page.line("")
    page.notes(sheet.notes)
    return page.text


def _widths(sheet: Sheet, head: Head) -> list[int]:
    shown = [PARTS, *(row[head].shown for row in sheet.grid.values() if head in row)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    widths[1] += max(0, len(head.title) - sum(widths) - 3 * _GAP)
    return widths


def _line(
    name: str, cells: Sequence[Sequence[str]], block: Sequence[Head], widths: dict[Head, list[int]]
) -> str:
    parts = [name]
    for four, head in zip(cells, block, strict=True):
        parts += [part.rjust(width) for part, width in zip(four, widths[head], strict=True)]
    return (" " * _GAP).join(parts)


def _fitting(heads: Sequence[Head], width: int, size: Callable[[Head], int]) -> list[list[Head]]:
    """Heads in blocks no wider than ``width``, at least one each."""
    blocks: list[list[Head]] = []
    used = width + 1
    for head in heads:
        if used + size(head) > width:
            blocks.append([])
            used = 0
        blocks[-1].append(head)
        used += size(head)
    return blocks


def to_markdown(sheet: Sheet) -> str:
    """One table a benchmark and metric, its budgets side by side."""
    lines = [f"### {markdown.escape(sheet.title)}", ""]
    for heading, found in groupby(sheet.heads, lambda head: head.heading):
        block = list(found)
        names = [f"{head.budget}: {part}" for head in block for part in PARTS]
        lines += [f"#### {markdown.escape(heading)}", "", f"| method | {' | '.join(names)} |"]
        lines += [f"| --- |{' ---: |' * len(names)}"]
        for label, quads in sheet.rows(block):
            cells = [markdown.escape(part) for quad in quads for part in quad.shown]
            lines.append(f"| {' | '.join([markdown.escape(label), *cells])} |")
        lines.append("")
    return "\n".join([*lines, *markdown.notes(sheet.notes)]) + "\n"


def to_latex(sheet: Sheet) -> str:
    """One ``table`` environment per page width."""
    blocks = _fitting(sheet.heads, LATEX_HEADS, lambda head: 1)
    return latex.document(sheet.title, [_tabular(sheet, block) for block in blocks], sheet.notes)


def _tabular(sheet: Sheet, block: Sequence[Head]) -> list[str]:
    heads = [f"\\multicolumn{{4}}{{c}}{{{latex.escape(head.title)}}}" for head in block]
    rules = [f"\\cmidrule(lr){{{2 + 4 * place}-{5 + 4 * place}}}" for place in range(len(block))]
    lines = [
        r"\scriptsize\setlength{\tabcolsep}{3pt}",
        f"\\begin{{tabular}}{{l{'rcrr' * len(block)}}}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
        "".join(rules),
        " & ".join(["method", *map(latex.escape, PARTS * len(block))]) + r" \\",
        r"\midrule",
    ]
    for label, quads in sheet.rows(block):
        parts = [label, *(part for quad in quads for part in quad.shown)]
        lines.append(" & ".join(map(latex.escape, parts)) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def to_html(sheet: Sheet) -> str:
    """A ``<section>`` with one table whose columns a script can sort (``data-sort``)."""
    top = "".join(f'<th colspan="4" scope="colgroup">{escape_html(head.title)}</th>' for head in sheet.heads)
    below = "".join(f'<th scope="col">{part}</th>' for part in PARTS) * len(sheet.heads)
    rows = [
        f'<tr><th scope="row">{escape_html(label)}</th>{"".join(map(_cells, quads))}</tr>'
        for label, quads in sheet.rows(sheet.heads)
    ]
    return html.section(sheet.title, top, below, rows, sheet.notes)


def _cells(quad: Quad) -> str:
    keys = ["", "", "", ""]
    if quad.pair is not None:
        found, published = quad.pair.measured, quad.pair.published
        values = [
            found.value if found else None,
            None,
            published.number,
            quad.pair.difference if found else None,
        ]
        keys = ["" if v is None or v != v else f' data-sort="{v:.10g}"' for v in values]
    return "".join(f"<td{key}>{escape_html(part)}</td>" for key, part in zip(keys, quad.shown, strict=True))
