"""One table, one renderer a format: what every command prints is a ``Record``.

>>> print(render([record], "markdown"))
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.rendering.record import MISSING, Heading, Record, Row, Shown, plain

__all__ = ["FORMATS", "MISSING", "Shown", "Heading", "Record", "Row", "plain", "render"]

FORMATS = ("text", "markdown", "csv", "latex", "html")


def render(records: Sequence[Record], format: str, width: int | None = None) -> str:
    """Records one below the other. width: columns of the terminal, for text; None: as wide as it is."""
    from kvbench.rendering import csv, html, latex, markdown, text

    if format == "csv":
        return csv.to_csv(records)
    if format == "text":
        return "\n".join(text.to_text(record, width) for record in records)
    return "\n".join({"markdown": markdown, "latex": latex, "html": html}[format].show(r) for r in records)
