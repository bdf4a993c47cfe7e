"""For another program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvbench.analysis.tables.shape import Column, Table, Value, is_full
from kvbench.rendering.csv import lines

COLUMNS = ["model", "method", "benchmark", "metric", "budget", "value", "delta", "ci_low", "ci_high", "best"]
COLUMNS += ["n", "kept_mean", "kept_min", "kept_max", "base", "base_window", "p", "p_holm"]


def to_csv(tables: Sequence[Table]) -> str:
    """Long form of what the table shows: one row per cell of the table, holes included, values unscaled."""
    rows = []
    for item in tables:
        for label, column, value in _cells(item):
            known = dict(_row(item.model, label, column, value))
            rows.append([known.get(name) for name in COLUMNS])
    return lines(COLUMNS, rows)


def _cells(item: Table) -> Iterator[tuple[str, Column, Value]]:
    for label, row in item.grid.items():
        seen = set()
        for column, value in row.items():
            if is_full(label) and (column.benchmark, column.metric) in seen:
                continue  # one value for all budgets
            seen.add((column.benchmark, column.metric))
            yield label, column, value


def _row(model: str, label: str, column: Column, value: Value) -> Iterator[tuple[str, Any]]:
    gap, entry = value.gap, value.entry
    kept = entry.kept if entry is not None and entry.kept else {}
    base = value.base if gap is not None else None
    budget = None if is_full(label) else column.budget
    yield from zip(COLUMNS, (model, label, column.benchmark, column.metric, budget), strict=False)
    yield "value", value.value
    yield from zip(
        ("delta", "ci_low", "ci_high"), (gap.delta, gap.low, gap.high) if gap else (), strict=False
    )
    yield "best", int(value.best)
    yield "n", entry.scores.n if entry is not None and entry.scores is not None else 0
    yield from ((f"kept_{key}", kept.get(key)) for key in ("mean", "min", "max"))
    yield "base", base.label if base is not None else None
    yield "base_window", base.window if base is not None else None
    yield from (("p", value.p), ("p_holm", value.p_holm))
