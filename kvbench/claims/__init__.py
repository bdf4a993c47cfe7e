"""The papers' claims, each with our figure, its interval and a verdict. Rendering never needs a model.

claims.yaml lists them; ``measures`` knows the functions that it names.

>>> print(claims.render(claims.rows("runs/claims"), "runs/claims", "markdown"))
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["listed", "render", "rows"]


def listed() -> list:
    """Every ``Claim`` of claims.yaml, in the papers' order."""
    import yaml

    from kvbench.claims.row import Claim, Region

    records = yaml.safe_load(Path(__file__).with_name("claims.yaml").read_text("utf-8"))
    return [Claim(**{**record, "region": Region(**record["region"])}) for record in records]


def rows(store: Path | str) -> list:
    """One ``ClaimRow`` a claim, in the papers' order; a claim whose data are missing is a row with a hole."""
    from kvbench.claims import cells, measured, measures

    store = Path(store)
    data = {"claims": measured.load(store), "observe": measured.observed(store), "run": cells.Cells(store)}
    return [measures.row(claim, data[claim.command.split()[0]]) for claim in listed()]


def render(found: list, store: Path | str, format: str = "text", width: int | None = None) -> str:
    """Rows as a table in one of ``rendering.FORMATS``."""
    from kvbench.claims import verdicts

    return verdicts.render(found, str(store), format, width)
