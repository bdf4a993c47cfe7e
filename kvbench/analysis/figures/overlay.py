"""Pictures under the visual tokens that methods retain, side by side; ``kvbench retained`` stored them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.figures.style import grid, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kvbench.analysis.results import Entry

MOST = 4  # pictures down and cells across; of more cells, those of the smallest budget
VEIL = 0.9  # how much of a token that no head keeps is hidden


def figures(store: Path) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of every model and benchmark of a store whose retained tokens are known."""
    from kvbench import retained
    from kvbench.analysis.results import entries

    folders: dict[Path, list[Entry]] = {}
    for entry in entries(store):
        if entry.cell.budget is not None:
            folders.setdefault(entry.cell.folder, []).append(entry)
    for folder, cells in folders.items():
        indices = sorted(int(path.stem) for path in (folder / "retained").glob("*.json"))[:MOST]
        known = {index: retained.read(folder, index) for index in indices}
        cells = _shown(
            [entry for entry in cells if any(entry.cell.digest in k["cells"] for k in known.values())]
        )
        if cells:
            with style():
                yield f"retained-{folder.parent.name}-{folder.name}", _figure(cells, known)


def _shown(cells: list[Entry]) -> list[Entry]:
    if len(cells) > MOST:
        smallest = min(entry.cell.budget for entry in cells)
        cells = [entry for entry in cells if entry.cell.budget == smallest]
    return cells[:MOST]


def _figure(cells: list[Entry], known: dict[int, dict[str, Any]]) -> Figure:
    """Samples down, cells across; of a sample with several pictures the first."""
    from kvbench import benchmarks
    from kvbench.analysis.scoring import benchmark_config

    samples = benchmarks.load(benchmark_config(cells[0].cell)).samples(max(known) + 1)
    figure, axes = grid(len(known), len(cells), 2.6, 1.9)
    for line, (index, document) in zip(axes, known.items(), strict=True):
        image = samples[index].images()[0].convert("RGB")
        for panel, entry in zip(line, cells, strict=True):
            panel.imshow(image)
            panel.set_axis_off()
            if entry.cell.digest in document["cells"]:
                share = shares(document["cells"][entry.cell.digest], document["grids"][0])
                extent = _extent(image.size, document["grids"][0])
                hidden = np.ones((*share.shape, 4))
                hidden[..., 3] = VEIL * (1 - share / max(share.max(), 1e-9))
                panel.imshow(hidden, extent=extent, interpolation="nearest", aspect="auto")
                panel.set_title(
                    f"sample {index}, {entry.label}, {entry.cell.budget}\n{share.mean():.0%} retained"
                )
            panel.set_xlim(0, image.width)
            panel.set_ylim(image.height, 0)
            panel.set_aspect("equal")
    return figure


def shares(text: str, tokens: dict[str, Any]) -> np.ndarray:
    """[rows, columns] share of the (layer, KV head) pairs that keep each token of the first picture."""
    values = np.frombuffer(base64.b64decode(text), np.uint8)
    rows, columns = tokens["rows"], tokens["columns"]
    return values[: rows * columns].reshape(rows, columns) / 255


def _extent(size: tuple[int, int], tokens: dict[str, Any]) -> tuple[float, float, float, float]:
    """left, right, bottom, top of the grid in pixels of the picture."""
    return 0, size[0] * tokens["width"], size[1] * tokens["height"], 0
