"""For another program."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from kvbench.rendering.record import Record


def lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows under columns, numbers unrounded; empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if _nothing(value) else value for value in row] for row in rows)
    return out.getvalue()


def _nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def to_csv(records: Sequence[Record]) -> str:
    """Cells as they are shown; records of the same columns are told apart by the column ``table``."""
    rows = [(record.title, row) for record in records for row in record.rows]
    columns = ["table", records[0].corner, *records[0].columns]
    return lines(columns, ([title, row.label, *(c.text for c in row.cells)] for title, row in rows))
