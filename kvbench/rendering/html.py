"""For a web page: a fragment whose columns a script can sort (``data-sort``); everything is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kvbench.rendering.record import Record, Row, Shown


def show(record: Record) -> str:
    """A ``<section>`` with the heading, the table, the legend and the footer; no style of its own."""
    names = [name for group in record.groups for name in group.columns]
    below = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    tall = ' rowspan="2"' if record.grid else ""
    corner = f'<th{tall} scope="col">{escape(record.corner)}</th>'
    top = [
        f'<th colspan="{len(group.columns)}" scope="colgroup">{escape(group.heading)}</th>'
        for group in record.groups
    ]
    heads = [f"{corner}{''.join(top)}", below] if record.grid else [corner + below]
    return "\n".join(
        [
            "<section>",
            f"<h3>{escape(record.title)}</h3>",
            '<div class="wide"><table class="results sortable">',
            f"<thead>{chr(10).join(f'<tr>{line}</tr>' for line in heads)}</thead>",
            "<tbody>",
            *map(_row, record.rows),
            "</tbody></table></div>",
            *(f"<p>{escape(note)}</p>" for note in record.notes[:1]),
            *_footer(record.notes[1:]),
            "</section>",
            "",
        ]
    )


def _row(row: Row) -> str:
    """Of a value for a whole group every column has it, so that a sorted one compares with it."""
    return (
        f'<tr><th scope="row">{escape(row.label)}</th>{"".join(_cell(c, row.spans) for c in row.cells)}</tr>'
    )


def _cell(cell: Shown, full: bool) -> str:
    sort = "" if cell.sort is None else f' data-sort="{cell.sort:.10g}"'
    shown = f"<b>{escape(cell.text)}</b>" if cell.best else escape(cell.text)
    shown += f" {escape(cell.delta)}" if cell.delta else ""
    shown += f"<br><small>{escape(cell.below)}</small>" if cell.below else ""
    kind = ' class="full"' if full else ""
    return f"<td{kind}{sort}>{shown}</td>"


def _footer(lines: Sequence[str]) -> list[str]:
    """Sentences as a list; commands, which are indented, as code that can be copied."""
    commands = [line.strip() for line in lines if line.startswith("  ")]
    items = [f"<li>{escape(line)}</li>" for line in lines if not line.startswith("  ")]
    code = [f"<pre><code>{escape(chr(10).join(commands))}</code></pre>"] if commands else []
    return (["<ul>", *items, "</ul>"] if items else []) + code
