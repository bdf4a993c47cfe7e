"""Two options of a method against each other, as alpha x beta in the papers' ablations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.figures.style import grid
from kvbench.analysis.results import Entry
from kvbench.analysis.scoring import benchmark_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 2  # values of each option that make a map


def option_maps(found: Sequence[Entry]) -> Iterator[tuple[str, Figure]]:
    """(name, figure) for every pair of options that two or more values were tried of, all else equal."""
    alike: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in found:
        cell = entry.cell
        if cell.budget is not None and entry.scores is not None:
            key = (cell.model, cell.benchmark, cell.method, cell.budget, cell.seed, cell.prompt)
            alike.setdefault(key, []).append(entry)
    for (model, benchmark, method, budget, *_), cells in alike.items():
        options = {entry.cell.digest: entry.cell.options for entry in cells}
        keys = sorted({key for mine in options.values() for key in mine})
        varied = [key for key in keys if len({repr(mine.get(key)) for mine in options.values()}) > 1]
        for first, second in itertools.combinations(varied, 2):
            rest = [key for key in varied if key not in (first, second)]
            groups: dict[str, list[Entry]] = {}
            for entry in cells:
                mine = options[entry.cell.digest]
                label = " ".join(f"{_name(key)}={mine.get(key)}" for key in rest)
                groups.setdefault(label, []).append(entry)
            for label, group in groups.items():
                figure = _map(group, first, second, f"{benchmark}, {method} at {budget} {label}".strip())
                if figure is not None:
                    parts = (model, benchmark, method, budget, _name(first), _name(second), label)
                    yield "-".join(str(part) for part in parts if part != ""), figure


def _name(key: str) -> str:
    return key.rsplit(".", 1)[-1]


def _map(cells: list[Entry], first: str, second: str, title: str) -> Figure | None:
    cfg = benchmark_config(cells[0].cell)
    metric, scale = cfg.get("metric", "score"), float(cfg.get("scale", 1))
    values = {}
    for entry in cells:
        mine, value = entry.cell.options, entry.scores.metrics.get(metric)
        if first in mine and second in mine and value is not None and math.isfinite(value):
            values[mine[first], mine[second]] = value * scale
    ups = sorted({up for up, _ in values}, key=_order)
    sides = sorted({side for _, side in values}, key=_order)
    if len(ups) < LEAST or len(sides) < LEAST:
        return None
    image = np.array([[values.get((up, side), math.nan) for side in sides] for up in ups])
    figure, axes = grid(1, 1, 0.6 * len(sides) + 1.2, 0.4 * len(ups) + 0.8)
    panel = axes[0, 0]
    shown = panel.imshow(image, cmap="cividis", aspect="auto", origin="lower")
    panel.grid(False)
    middle = (np.nanmin(image) + np.nanmax(image)) / 2
    for (row, column), value in np.ndenumerate(image):
        text = "—" if math.isnan(value) else f"{value:.{1 if scale == 100 else 3}f}"
        panel.text(column, row, text, ha="center", va="center", color="white" if value <= middle else "black")
    panel.set_xticks(range(len(sides)), [str(side) for side in sides])
    panel.set_yticks(range(len(ups)), [str(up) for up in ups])
    panel.set_xlabel(_name(second))
    panel.set_ylabel(_name(first))
    panel.set_title(title)
    figure.colorbar(shown, label=metric)
    return figure


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then everything else by name."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return not number, value if number else str(value)
