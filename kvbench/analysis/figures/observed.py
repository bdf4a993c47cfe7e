"""What prompts show, from the values that ``kvbench observe`` stored: means with 95 % intervals.

Lines are means over prompts; bands resample pages or pictures (questions about one are not independent).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.figures.style import COLOURS, colour, grid, legend
from kvbench.analysis.resampling import intervals
from kvbench.observations import BUDGET, FOLDER, LAST, QUANTILES, stored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Mapping[str, Any]
Sets = dict[str, list[Values]]  # by benchmark, the values of its prompts
SMOOTHED = 3  # layers of the moving average over diversity weights (ECOKV appendix B.5)


def figures(store: Path) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of every model that has been observed in a store."""
    for folder in sorted((store / FOLDER).glob("*/")):
        sets = {path.stem: stored.in_order(stored.read(path)) for path in sorted(folder.glob("*.json"))}
        sets = {name: values for name, values in sets.items() if values}
        if sets:
            for name, figure in _of_model(sets):
                yield f"{name}-{folder.name}", figure


def _of_model(sets: Sets) -> Iterator[tuple[str, Figure]]:
    yield "key-similarity", _similarity(sets)
    yield "diversity-weight", _weights(sets)
    yield "correlation", _correlation(sets)
    yield "recent-positions", _recent(sets)
    for name, values in sets.items():
        for found in [one["projection"] for one in values if "projection" in one][:1]:
            yield f"keys-2d-{name}", _projection(found, name)
    marked = {name: mine for name, values in sets.items() if (mine := [v for v in values if "attended" in v])}
    if marked:
        yield "evidence-by-query", _by_query(marked)
        yield "evidence-by-layer", _by_layer(marked)
        yield "coherence-persistence", _structure(marked)


def matrix(values: Sequence[Values], pick: Callable[[Values], Sequence[float | None]]) -> np.ndarray:
    """One row a prompt, as long as the longest; NaN for none, so where shorter ones lack their beginning."""
    rows = [[math.nan if value is None else value for value in pick(one)] for one in values]
    longest = max(map(len, rows))
    return np.array([[math.nan] * (longest - len(row)) + row for row in rows], dtype=float)


def line(panel, x: Sequence[float], values: np.ndarray, pages: Sequence[str], shade: str, **how: Any) -> None:
    """Means of the columns [n, k] against ``x`` with the band of their intervals.

    NaN are left out, and so is a column that fewer than half of the prompts have.
    """
    known = np.isfinite(values)
    means, bands = np.full(values.shape[1], math.nan), np.full((2, values.shape[1]), math.nan)
    for rows in np.unique(known, axis=1).T:  # columns with the same prompts are resampled at once
        columns = (known == rows[:, None]).all(0)
        if 2 * rows.sum() >= len(rows):
            mine = values[np.ix_(rows, columns)]
            means[columns] = mine.mean(0)
            bands[:, columns] = intervals(mine, clusters=[pages[row] for row in np.flatnonzero(rows)])
    panel.plot(x, means, color=shade, linewidth=1.2, **how)
    panel.fill_between(x, *bands, color=shade, alpha=0.15, linewidth=0)


def _pages(values: Sequence[Values]) -> list[str]:
    return [one["page"] for one in values]


def _against_layers(panel, sets: Sets, pick: Callable[[Values], Sequence[float | None]], **how: Any) -> None:
    """One line a benchmark."""
    for name, values in sets.items():
        found = matrix(values, pick)
        line(panel, range(found.shape[1]), found, _pages(values), colour(name, list(sets)), label=name, **how)
    panel.set_xlabel("layer")


def _similarity(sets: Sets) -> Figure:
    """ECOKV figures 1 and 2 (a): mean cosine of two keys; its distribution over keys; Euclidean distances."""
    figure, axes = grid(1, 2 + len(sets), 2.6, 2.3)
    first, *middle, last = axes[0]
    _against_layers(first, sets, lambda one: one["cosine"])
    first.set_title("mean cosine of two keys")
    for panel, (name, values) in zip(middle, sets.items(), strict=True):
        levels = np.array([one["cosines"] for one in values]).mean(0)  # [layers, quantiles]
        layers, shade = range(len(levels)), colour(name, list(sets))
        for low, high in ((0, -1), (1, -2)):
            panel.fill_between(layers, levels[:, low], levels[:, high], color=shade, alpha=0.2, linewidth=0)
        panel.plot(layers, levels[:, len(QUANTILES) // 2], color=shade, linewidth=1.2)
        panel.set_title(f"{name}: a key's mean cosine,\n5, 25, 50, 75, 95 % of the keys")
        panel.set_xlabel("layer")
    _against_layers(last, sets, lambda one: one["distance"])
    last.set_title("distance to the mean key")
    legend(figure, axes)
    return figure


def smooth(values: np.ndarray, width: int = SMOOTHED) -> np.ndarray:
    """Moving average along the columns [n, k]; at the ends of what there is."""
    reach = width // 2
    spans = [slice(max(0, k - reach), k + reach + 1) for k in range(values.shape[1])]
    return np.stack([values[:, span].mean(1) for span in spans], axis=1)


def _weights(sets: Sets) -> Figure:
    """ECOKV figures 7 and 8: redundancy from cosines and from Euclidean distances, and the weight of both."""
    figure, axes = grid(1, len(sets), 2.8, 2.3)
    lines = {"cosine": "cosine r_C", "spread": "Euclidean r_E", "weight": "weight λ"}
    for panel, (name, values) in zip(axes[0], sets.items(), strict=True):
        for shade, (key, label) in zip(COLOURS, lines.items(), strict=False):
            found = matrix(values, lambda one, key=key: one[key])
            line(panel, range(found.shape[1]), smooth(found), _pages(values), shade, label=label)
        panel.set_title(f"{name}, {SMOOTHED}-layer moving average")
        panel.set_xlabel("layer")
    axes[0, 0].set_ylabel("redundancy")
    legend(figure, axes)
    return figure


def _correlation(sets: Sets) -> Figure:
    """ECOKV figures 4 and 6."""
    figure, axes = grid(1, 1, 3.6, 2.3)
    panel = axes[0, 0]
    _against_layers(panel, sets, lambda one: one["correlation"])
    panel.axhline(0, color=COLOURS[-1], linewidth=0.8, linestyle=":")
    panel.set_ylabel("Spearman's ρ")
    panel.set_title("importance and diversity of the candidates")
    legend(figure, axes)
    return figure


def _recent(sets: Sets) -> Figure:
    """ECOKV figure 5: how often each of the last positions is kept, one panel a method.

    Above a panel stands the share of the kept entries that all of them are, in the legend's order.
    """
    methods = list(next(iter(sets.values()))[0]["recent"])
    figure, axes = grid(1, len(methods), 2.6, 2.3)
    for panel, method in zip(axes[0], methods, strict=True):
        shares = []
        for name, values in sets.items():
            found = matrix(values, lambda one: one["recent"][method])  # noqa: B023 - used at once
            line(panel, range(-LAST, 0), found, _pages(values), colour(name, list(sets)), label=name)
            shares.append(f"{found.sum(1).mean() / BUDGET:.0%}")
        panel.set_title(f"{method}\n{', '.join(shares)} of what is kept")
        panel.set_xlabel("position, -1 is the last")
    axes[0, 0].set_ylabel(f"share of KV heads that keep it (budget {BUDGET})")
    legend(figure, axes)
    return figure


def _projection(found: Values, name: str) -> Figure:
    """ECOKV figure 2 (b): keys of layer 0 in their first two principal components, one panel a head."""
    figure, axes = grid(1, len(found["points"]), 2.3, 2.1)
    visual = np.array(found["visual"], dtype=bool)
    pairs = zip(axes[0], found["points"], found["explained"], strict=True)
    for head, (panel, points, explained) in enumerate(pairs):
        points = np.array(points)
        for label, these, shade in (("visual", visual, COLOURS[0]), ("text", ~visual, COLOURS[1])):
            if these.any():
                panel.plot(*points[these].T, ".", color=shade, markersize=2.5, alpha=0.6, label=label)
        panel.set_title(f"{name}, layer 0, KV head {head}\n{sum(explained):.0%} of the variance")
    legend(figure, axes)
    return figure


def _by_query(sets: Sets) -> Figure:
    """BACON figure 2 (b): the evidence that each query of the text after the picture sees."""
    figure, axes = grid(1, 2, 3.0, 2.3)
    for panel, (key, title) in zip(
        axes[0],
        (
            ("attended", "% of the attention on evidence"),
            ("captured", "share of the evidence among\nas many visual tokens"),
        ),
        strict=True,
    ):
        for name, values in sets.items():
            found = matrix(values, lambda one: one[key])  # noqa: B023 - used at once
            x = range(-found.shape[1], 0)
            line(panel, x, found, _pages(values), colour(name, list(sets)), label=name)
        panel.set_title(title)
        panel.set_xlabel("query, -1 is the last of the prompt")
    legend(figure, axes)
    return figure


def _by_layer(sets: Sets) -> Figure:
    """BACON figures 2 (c) and 3 (a): last query against window mean; noise in its strongest tokens."""
    figure, axes = grid(1, 2, 3.0, 2.3)
    _against_layers(axes[0, 0], sets, lambda one: one["captured_last"])
    for name, values in sets.items():
        found = matrix(values, lambda one: one["captured_window"])
        shade = colour(name, list(sets))
        axes[0, 0].plot(range(found.shape[1]), found.mean(0), color=shade, linewidth=1, linestyle="--")
    axes[0, 0].set_title("share of the evidence captured\nby the last query (dashed: window mean)")
    _against_layers(axes[0, 1], sets, lambda one: [1 - share for share in one["captured_last"]])
    axes[0, 1].set_title("share of noise among as many\nof the strongest visual tokens")
    legend(figure, axes)
    return figure


def _structure(sets: Sets) -> Figure:
    """BACON figure 3 (b) and (c): coherence and persistence by layer, of evidence and of noise."""
    figure, axes = grid(2, len(sets), 2.8, 1.9)
    for column, (name, values) in enumerate(sets.items()):
        for panel, what in zip(axes[:, column], ("coherence", "persistence"), strict=True):
            for kind, shade in (("evidence", COLOURS[0]), ("noise", COLOURS[1])):
                found = matrix(values, lambda one: one[f"{what}_{kind}"])  # noqa: B023 - used at once
                line(panel, range(found.shape[1]), found, _pages(values), shade, label=kind)
            panel.set_title(f"{name}: {what}")
        axes[-1, column].set_xlabel("layer")
    legend(figure, axes)
    return figure
