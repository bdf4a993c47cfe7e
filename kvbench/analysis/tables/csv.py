"""For another program."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from kvbench.analysis.tables.shape import Table, is_full


def to_csv(tables: Sequence[Table]) -> str:
    """Long form of what the table shows: one row per cell of the table, holes included, values unscaled."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            "model",
            "method",
            "benchmark",
            "metric",
            "budget",
            "value",
            "delta",
            "ci_low",
            "ci_high",
            "best",
            "n",
        ]
        + ["kept_mean", "kept_min", "kept_max"]
    )
    for item in tables:
        for label, row in item.grid.items():
            seen = set()
            for column, value in row.items():
                if is_full(label) and (column.benchmark, column.metric) in seen:
                    continue  # one value for all budgets
                seen.add((column.benchmark, column.metric))
                gap, entry = value.gap, value.entry
                known = value.value is not None and math.isfinite(value.value)
                numbers = [gap.delta, gap.low, gap.high] if gap is not None else [None] * 3
                kept = entry.kept if entry is not None and entry.kept else {}
                writer.writerow(
                    [
                        item.model,
                        label,
                        column.benchmark,
                        column.metric,
                        "" if is_full(label) else column.budget,
                    ]
                    + [value.value if known else ""]
                    + ["" if number is None or not math.isfinite(number) else number for number in numbers]
                    + [int(value.best), entry.scores.n if entry and entry.scores else 0]
                    + [kept.get("mean", ""), kept.get("min", ""), kept.get("max", "")]
                )
    return out.getvalue()
