"""For a web page: a fragment whose columns a script can sort (``data-sort``); everything is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from kvbench.analysis.tables.shape import Column, Table, is_full
from kvbench.analysis.tables.show import groups, legend, parts


def to_html(item: Table) -> str:
    """A ``<section>`` with the heading, the table, the legend and the footer; no style of its own."""
    blocks = groups(item.columns)
    top = "".join(
        f'<th colspan="{len(block)}" scope="colgroup">{escape(block[0].heading)}</th>' for block in blocks
    )
    budgets = "".join(f'<th scope="col">{c.budget or "full"}</th>' for block in blocks for c in block)
    rows = [
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(_cell(item, label, column) for block in blocks for column in block)
        + "</tr>"
        for label in item.grid
    ]
    return section(item.model, top, budgets, rows, [legend(item), *item.footer])


def section(title: str, top: str, below: str, rows: Sequence[str], notes: Sequence[str]) -> str:
    """Heading, table and notes; ``top``, ``below`` (heading rows) and ``rows`` are HTML, the rest is text."""
    return "\n".join(
        [
            "<section>",
            f"<h3>{escape(title)}</h3>",
            '<div class="wide"><table class="results sortable">',
            f'<thead><tr><th rowspan="2" scope="col">method</th>{top}</tr>\n<tr>{below}</tr></thead>',
            "<tbody>",
            *rows,
            "</tbody></table></div>",
            f"<p>{escape(notes[0])}</p>",
            *_footer(notes[1:]),
            "</section>",
            "",
        ]
    )


def _cell(item: Table, label: str, column: Column) -> str:
    """The value, repeated under every budget for fullkv, so that a sorted column compares with it."""
    value = item.grid[label][column]
    text, delta, interval = parts(item, label, column)
    known = value.value is not None and math.isfinite(value.value)
    sort = f' data-sort="{value.value:.10g}"' if known else ""
    shown = f"<b>{escape(text)}</b>" if value.best else escape(text)
    shown += f" {escape(delta)}" if delta else ""
    shown += f"<br><small>{escape(interval)}</small>" if interval else ""
    full = ' class="full"' if is_full(label) else ""
    return f"<td{full}{sort}>{shown}</td>"


def _footer(lines: Sequence[str]) -> list[str]:
    """Sentences as a list; commands, which are indented, as code that can be copied."""
    commands = [line.strip() for line in lines if line.startswith("  ")]
    items = [f"<li>{escape(line)}</li>" for line in lines if not line.startswith("  ")]
    code = [f"<pre><code>{escape(chr(10).join(commands))}</code></pre>"] if commands else []
    return ["<ul>", *items, "</ul>", *code]
