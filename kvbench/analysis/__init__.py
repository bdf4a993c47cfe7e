"""From stored answers to figures with honest uncertainty. Reads a store; never needs a model.

>>> kvbench.analysis.score_store("runs/table1")    # scores/DIGEST.json per cell, results.csv
>>> print(kvbench.analysis.table("runs/table1"))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["Missing", "score_store", "table"]


class Missing(str):
    """A warning that something is incomplete or could not be scored."""


def score_store(store: Path | str) -> list[str]:
    """Score every complete cell of a store and write results.csv; returns warnings in full sentences."""
    from kvbench.analysis.scoring import score_store as run

    return run(Path(store))


def table(store: Path | str, format: str = "text", width: int | None = None, **choice: Any) -> str:
    """The results of a store in the shape of the papers' Table 1, in one of ``rendering.FORMATS``.

    ``choice``: what differences are from and how noise is judged, the fields of ``tables.Choice``.
    """
    from kvbench.analysis.tables import Choice
    from kvbench.analysis.tables import table as render

    return render(Path(store), format, width, Choice(**choice))
