"""Score against budget, and what the budgets came to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kvbench.analysis.figures.style import colour, grid, legend, mark
from kvbench.analysis.results import Entry, mean
from kvbench.analysis.tables.shape import Column, Table, is_full
from kvbench.analysis.tables.show import groups

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def families(item: Table) -> dict[str, list[str]]:
    """Compressed labels by capacity, in the table's order."""
    found: dict[str, list[str]] = {}
    for label in item.grid:
        if not is_full(label):
            found.setdefault(label.split(" ")[0].split("+")[0], []).append(label)
    return found


def score_against_budget(item: Table) -> Figure | None:
    """Capacities down, benchmarks across; bands are 95 % intervals of the means, dashed is uncompressed.

    None where there are no two budgets to draw a line between.
    """
    rows, columns = families(item), groups(item.columns)
    if all(len(block) < 2 for block in columns):
        return None
    if not rows or all(value.value is None for row in item.grid.values() for value in row.values()):
        return None
    figure, axes = grid(len(rows), len(columns))
    names = list(dict.fromkeys(_short(label, family) for family, found in rows.items() for label in found))
    for line, (family, found) in zip(axes, rows.items(), strict=True):
        for panel, block in zip(line, columns, strict=True):
            panel.set_title(f"{block[0].heading}\n{family}" if family != "" else block[0].heading)
            _full(panel, item, block[0])
            for label in found:
                name = _short(label, family)
                _line(panel, item, label, block, name, colour(name, names), mark(name, names))
            budgets = [column.budget for column in block]
            panel.set_xscale("log", base=2)
            panel.set_xticks(budgets, [str(budget) for budget in budgets])
            panel.minorticks_off()
    for panel in axes[-1]:
        panel.set_xlabel("budget (entries per KV head)")
    legend(figure, axes)
    return figure


def _short(label: str, family: str) -> str:
    """The label without its capacity: ``+bacon``; the capacity alone is ``window attention``."""
    return label.removeprefix(family).strip() or "window attention"


def _full(panel, item: Table, column: Column) -> None:
    for label, row in item.grid.items():
        value = row[column].value
        if is_full(label) and value is not None and math.isfinite(value):
            panel.axhline(value * column.scale, color="#7f7f7f", linestyle="--", linewidth=1, label=label)


def _line(panel, item: Table, label: str, block: list[Column], name: str, shade: str, sign: str) -> None:
    points = [
        (column.budget, item.grid[label][column].value * column.scale, item.grid[label][column].entry)
        for column in block
        if item.grid[label][column].value is not None and math.isfinite(item.grid[label][column].value)
    ]
    if not points:
        return
    budgets, values, cells = zip(*points, strict=True)
    bands = [mean(entry, block[0].metric) for entry in cells]
    low, high = (np.array([getattr(band, end) for band in bands]) * block[0].scale for end in ("low", "high"))
    panel.plot(budgets, values, color=shade, marker=sign, markersize=3.5, linewidth=1.2, label=name)
    panel.fill_between(budgets, low, high, color=shade, alpha=0.12, linewidth=0)


def realised_entries(item: Table) -> Figure | None:
    """Entries that a method kept per layer and head: dots are benchmarks' means, lines single heads."""
    kept: dict[str, dict[int, list[Entry]]] = {}
    for label, entry in _cells(item):
        if entry.kept and entry.kept["mean"] > 0:
            kept.setdefault(label, {}).setdefault(entry.cell.budget, []).append(entry)
    if not kept:
        return None
    figure, axes = grid(1, 1, 6.0, 0.17 * len(kept) + 0.9)
    panel = axes[0, 0]
    budgets = sorted({budget for found in kept.values() for budget in found}, reverse=True)
    for row, found in enumerate(kept.values()):
        for budget, cells in found.items():
            shade, y = colour(str(budget), [str(b) for b in budgets]), row + 0.22 * budgets.index(budget)
            ends = min(e.kept["min"] for e in cells), max(e.kept["max"] for e in cells)
            panel.plot(ends, (y, y), color=shade, linewidth=0.8, alpha=0.6)
            panel.plot(
                [e.kept["mean"] for e in cells],
                [y] * len(cells),
                "o",
                color=shade,
                markersize=3,
                label=str(budget),
            )
    for budget in budgets:
        panel.axvline(
            budget, color=colour(str(budget), [str(b) for b in budgets]), linestyle=":", linewidth=0.8
        )
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_yticks(range(len(kept)), list(kept))
    panel.invert_yaxis()
    panel.set_xlabel("realised entries per layer and KV head (dotted: the budget)")
    legend(figure, axes)
    return figure


def _cells(item: Table) -> Iterator[tuple[str, Entry]]:
    """Every compressed, scored cell once."""
    seen = set()
    for label, row in item.grid.items():
        for value in row.values():
            entry = value.entry
            if entry is None or entry.cell.budget is None or entry.cell.digest in seen:
                continue
            seen.add(entry.cell.digest)
            yield label, entry
