"""The published values: every results table of the papers, under kvbench's own names.

data/PAPER.csv holds one row a value, as printed; data/tables.yaml says what each table shows and what its
rows say that the table does not print. Units: ``%`` is hundredths (also of CIDEr or ROUGE-L), ``1`` a plain
number.

>>> reference.rows("bacon", "1")[0].value
'93.7'
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvbench.checks import suggest
from kvbench.errors import UserError

DATA = Path(__file__).parent / "data"
PAPERS = tuple(sorted(path.stem for path in DATA.glob("*.csv")))


@dataclass(frozen=True)
class PublishedValue:
    """One published value.

    ``budget`` is None for what keeps everything. ``setting`` holds what the table varies beside the
    method: options of the method, as ``radius=3``, or what tables.yaml explains. ``value`` and ``delta``,
    the difference printed beside it, are text with the printed digits. ``flag`` says where the paper
    contradicts itself; the value is kept.
    """

    paper: str
    table: str
    model: str
    benchmark: str
    metric: str
    method: str
    budget: int | None
    setting: str
    value: str
    unit: str
    is_upper_bound: bool
    delta: str
    flag: str

    @property
    def number(self) -> float:
        """The value as printed: 93.7 for 93.7 %."""
        return float(self.value)

    @property
    def options(self) -> dict[str, str]:
        """``setting`` as a mapping."""
        return dict(part.split("=", 1) for part in self.setting.split())


COLUMNS = tuple(field.name for field in fields(PublishedValue))
TIDY = COLUMNS[:10]  # what the command prints as CSV


@lru_cache
def _read(paper: str) -> tuple[PublishedValue, ...]:
    with (DATA / f"{paper}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(_row(record) for record in csv.DictReader(file))


def _row(record: dict[str, Any]) -> PublishedValue:
    record["budget"] = int(record["budget"]) if record["budget"] else None
    record["is_upper_bound"] = record["is_upper_bound"] == "1"
    return PublishedValue(**record)


@lru_cache
def about() -> dict[str, dict[str, dict[str, str]]]:
    """By paper and table: ``title`` and, where the rows need one, ``note``."""
    import yaml

    return yaml.safe_load((DATA / "tables.yaml").read_text("utf-8"))


def entry(paper: str, table: str) -> dict[str, str]:
    """``title`` and ``note`` of a table; of one that tables.yaml leaves out, a title alone."""
    return about().get(paper, {}).get(table, {"title": "as published"})


def rows(paper: str | None = None, table: str | int | None = None) -> list[PublishedValue]:
    """The values of one table, of one paper or of all, in the papers' order.

    Raises UserError, with the nearest name, for a paper or table that is not here.
    """
    if paper is not None and paper not in PAPERS:
        raise UserError(f"there is no paper {paper!r}: {suggest(paper, PAPERS)}")
    papers = PAPERS if paper is None else (paper,)
    found = [row for name in papers for row in _read(name)]
    if table is None:
        return found
    chosen = [row for row in found if row.table == str(table)]
    if not chosen:
        known = list(dict.fromkeys(row.table for row in found))
        raise UserError(
            f"there is no table {table!r} of {paper or 'any paper'}: {suggest(str(table), known)}"
        )
    return chosen
