"""The papers' claims, each with our figure, its interval and a verdict. Rendering never needs a model.

>>> print(claims.render(claims.rows("runs/claims"), "runs/claims", "markdown"))
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["FORMATS", "render", "rows"]

FORMATS = ("text", "markdown")


def rows(store: Path | str) -> list:
    """One ``Row`` a claim, in the papers' order; a claim whose data are missing is a row with a hole."""
    from kvbench.claims import cells, measured, prompts, rcr, text
    from kvbench.claims.row import evaluate

    stored = cells.Cells(Path(store))
    found = evaluate([*prompts.attention(), *prompts.keys()], measured.load(Path(store)))
    found += evaluate(text.keys(), text.load(Path(store)))
    found += evaluate([*cells.bacon(), *cells.ecokv(), *text.answers(), *rcr.tests()], stored)
    order = ("BACON", "ECOKV", "RCR")
    return sorted(found, key=lambda row: order.index(row.claim.paper))


def render(found: list, store: Path | str, format: str = "text", width: int = 120) -> str:
    """Rows as a table in one of FORMATS."""
    from kvbench.claims import rendering

    return rendering.render(found, str(store), format, width)
