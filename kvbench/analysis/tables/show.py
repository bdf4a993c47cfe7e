"""One value as it is shown, the same in every format."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvbench.analysis.tables.shape import HOLE, Column, Value


def parts(label: str, column: Column, value: Value) -> tuple[str, str, str]:
    """Value, difference and interval as shown; the last two may be empty."""
    if value.entry is None or value.entry.scores is None:
        return HOLE, "", ""
    if value.value is None:
        return "n/a", "", ""
    text = column.show(value.value)
    best = BEST if value.best else ""
    if value.gap is None or not math.isfinite(value.gap.delta):
        return text, best, ""
    shown = f"{abs(value.gap.delta) * column.scale:.{column.digits}f}"
    arrow = "→" if float(shown) == 0 else "↑" if value.gap.delta > 0 else "↓"
    delta = f"{arrow}{shown}{'*' if value.gap.sure else ''}{best}"
    if not math.isfinite(value.gap.low):
        return text, delta, "no interval"
    digits = min(column.digits, 2)
    low, high = (f"{bound * column.scale:+.{digits}f}" for bound in (value.gap.low, value.gap.high))
    return text, delta, f"[{low},{high}]"


BEST = "●"
LEGEND = (
    "↑↓→ difference from the same capacity without the score (with a refresh: from the same method without"
    " it) at the same budget, [95 % interval, paired bootstrap]; * interval excludes 0; {best} best"
    " compressed value, lead outside noise."
)


def groups(columns: Sequence[Column]) -> list[list[Column]]:
    """Columns of one benchmark and metric."""
    found: dict[tuple[str, str], list[Column]] = {}
    for column in columns:
        found.setdefault((column.benchmark, column.metric), []).append(column)
    return list(found.values())
