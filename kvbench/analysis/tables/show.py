"""One model's table as a record: values, differences and intervals as they are shown in every format."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvbench.analysis.tables.shape import Column, Table, family, is_full
from kvbench.rendering import MISSING, Heading, Record, Row, Shown


def record(item: Table) -> Record:
    """Methods down, benchmarks x budgets across, the methods of one capacity together."""
    blocks = groups(item.columns)
    heads = [Heading(block[0].heading, tuple(str(c.budget or "full") for c in block)) for block in blocks]
    rows, previous = [], None
    for label in item.grid:
        cells = tuple(_cell(item, label, column) for block in blocks for column in block)
        rows.append(Row(label, cells, is_full(label), previous not in (None, family(label)[0])))
        previous = family(label)[0]
    return Record(item.model, heads, rows, [legend(item), *item.footer], even=True)


def _cell(item: Table, label: str, column: Column) -> Shown:
    value = item.grid[label][column]
    known = value.value is not None and math.isfinite(value.value)
    return Shown(*parts(item, label, column), value.best, value.value if known else None)


def parts(item: Table, label: str, column: Column) -> tuple[str, str, str]:
    """Value, difference and interval (or p values) as shown; the last two may be empty."""
    value = item.grid[label][column]
    if value.entry is None or value.entry.scores is None:
        return MISSING, "", ""
    if value.value is None:
        return "n/a", "", ""
    text = column.show(value.value)
    best = BEST if value.best else ""
    if value.gap is None or not math.isfinite(value.gap.delta):
        return text, best, ""
    shown = f"{abs(value.gap.delta) * column.scale:.{column.digits}f}"
    arrow = "→" if float(shown) == 0 else "↑" if value.gap.delta > 0 else "↓"
    delta = f"{arrow}{shown}{'*' if value.gap.significant else ''}{best}"
    if item.choice.exact and value.p is not None:
        return text, delta, f"p {_p(value.p)}, {_p(value.p_holm)}"
    if not math.isfinite(value.gap.low):
        return text, delta, "no interval"
    digits = min(column.digits, 2)
    low, high = (f"{bound * column.scale:+.{digits}f}" for bound in (value.gap.low, value.gap.high))
    return text, delta, f"[{low},{high}]"


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


BEST = "●"


def legend(item: Table) -> str:
    """The sentence under a table."""
    choice = item.choice
    base = (
        "the same capacity without the score (with a refresh: from the same method without it)"
        if choice.against is None
        else choice.against
    )
    at = "" if choice.against == "fullkv" else " at the same budget"
    rule = rule_of(choice.interval)
    below = f"[95 % interval, {rule}]; * interval excludes 0"
    if choice.exact:
        below = (
            f"* its 95 % interval ({rule}) excludes 0; where all scores are 0 or 1, p of McNemar's exact"
            " test in its place, then adjusted by Holm over one family: every such difference of this model"
            " and metric, all benchmarks, methods and budgets (questions count as independent)"
        )
    return f"↑↓→ difference from {base}{at}, {below}; {BEST} best compressed value, lead outside noise."


def rule_of(interval: str) -> str:
    """How a legend names what its intervals are."""
    return "t over pages or pictures" if interval == "t" else f"{interval} bootstrap of pages or pictures"


def groups(columns: Sequence[Column]) -> list[list[Column]]:
    """Columns of one benchmark and metric."""
    found: dict[tuple[str, str], list[Column]] = {}
    for column in columns:
        found.setdefault((column.benchmark, column.metric), []).append(column)
    return list(found.values())
