"""The results of a store in the shape of the papers' Table 1.

Methods down, benchmarks x budgets across, FullKV on top. A method with a score on top of a capacity
(``snapkv+bacon``) shows its difference from that capacity alone (``snapkv``) at the same budget, a method
with a refresh the difference from itself without it, with the paired bootstrap 95 % interval; ``*`` marks
an interval that excludes 0. The best compressed value of a column is marked only when its lead over every
other method is outside noise as well. A cell that is missing is a hole, and the command that fills it is
printed.
"""

from __future__ import annotations

from pathlib import Path

from kvbench.analysis import FORMATS
from kvbench.analysis.results import entries
from kvbench.analysis.tables.build import build
from kvbench.analysis.tables.csv import to_csv
from kvbench.analysis.tables.html import to_html
from kvbench.analysis.tables.latex import to_latex
from kvbench.analysis.tables.markdown import to_markdown
from kvbench.analysis.tables.shape import Table
from kvbench.analysis.tables.text import to_text
from kvbench.errors import UserError

__all__ = ["Table", "build", "table"]


def table(store: Path, format: str = "text", width: int | None = None) -> str:
    """Render every model of a store. Raises UserError for an empty store or an unknown format."""
    if format not in FORMATS:
        raise UserError(f"there is no table format {format!r}: choose from {', '.join(FORMATS)}.")
    found = entries(store)
    if not found:
        raise UserError(f"there are no results in {store}: name a store that `kvbench run` wrote, store=DIR.")
    tables = [build(found, model, store) for model in dict.fromkeys(entry.cell.model for entry in found)]
    if format == "csv":
        return to_csv(tables)
    if format == "text":
        return "\n".join(to_text(item, width) for item in tables)
    render = {"markdown": to_markdown, "latex": to_latex, "html": to_html}[format]
    return "\n".join(map(render, tables))
