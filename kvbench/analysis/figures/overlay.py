"""Pictures under the visual tokens that methods retain, side by side; ``overlays=`` stored them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.figures.style import COLOURS, grid, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from kvbench.analysis.results import Entry

MOST = 4  # pictures across and cells down; of more cells, those of the smallest budget
PALE, STRONG = 0.35, 0.75  # how much of the picture shows, and of the colour where heads keep most


def figures(store: Path) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of every model and benchmark of a store whose retained tokens are known."""
    from kvbench.analysis.results import entries
    from kvbench.store import retained

    folders: dict[Path, list[Entry]] = {}
    for entry in entries(store):
        if entry.cell.budget is not None:
            folders.setdefault(entry.cell.folder, []).append(entry)
    for folder, cells in folders.items():
        indices = sorted(int(path.stem) for path in (folder / "retained").glob("*.json"))[:MOST]
        known = {index: retained.read(folder, index) for index in indices}
        cells = _shown([e for e in cells if any(e.cell.digest in found["cells"] for found in known.values())])
        if cells:
            with style():
                yield f"retained-{folder.parent.name}-{folder.name}", _figure(cells, known)


def _shown(cells: list[Entry]) -> list[Entry]:
    if len(cells) > MOST:
        smallest = min(entry.cell.budget for entry in cells)
        cells = [entry for entry in cells if entry.cell.budget == smallest]
    return cells[:MOST]


def _figure(cells: list[Entry], known: dict[int, dict[str, Any]]) -> Figure:
    """Samples across under their questions, cells down; of a sample with several pictures the first.

    The colour's strength is the share of heads that keep a token, on one scale for all cells of a sample;
    below stand its mean and its largest value.
    """
    from kvbench import benchmarks
    from kvbench.analysis.scoring import benchmark_config

    found = benchmarks.load(benchmark_config(cells[0].cell)).at(list(known))
    samples = {sample.index: sample for sample in found}
    images = {index: sample.images()[0].convert("RGB") for index, sample in samples.items()}
    tall = sum(image.height / image.width for image in images.values()) / len(images)
    figure, axes = grid(len(cells), len(known), 2.4 / tall**0.5, 2.4 * tall**0.5)
    for column, (index, document) in zip(axes.T, known.items(), strict=True):
        grids = document["grids"][0]
        found = {digest: shares(text, grids) for digest, text in document["cells"].items()}
        most = max((found[e.cell.digest].max() for e in cells if e.cell.digest in found), default=0)
        for panel, entry in zip(column, cells, strict=True):
            _panel(panel, images[index], found.get(entry.cell.digest), most, grids)
        column[0].set_title(_short(samples[index].text))
    for panel, entry in zip(axes[:, 0], cells, strict=True):
        panel.set_ylabel(f"{entry.label}, {entry.cell.budget}")
    return figure


def picture(image: Image, share: np.ndarray, grids: dict[str, Any], title: str) -> Figure:
    """One picture under share [rows, columns] of the (layer, KV head) pairs that keep each token of it."""
    with style():
        tall = image.height / image.width
        figure, axes = grid(1, 1, 3.6 / tall**0.5, 3.6 * tall**0.5)
        _panel(axes[0, 0], image.convert("RGB"), share, share.max(), grids)
        axes[0, 0].set_title(title)
    return figure


def _panel(panel, image: Image, share: np.ndarray | None, most: float, grids: dict[str, Any]) -> None:
    panel.imshow(image, alpha=PALE)
    panel.grid(False)
    panel.set_xticks([])
    panel.set_yticks([])
    if share is not None:
        _lay(panel, share / max(most, 1e-9), image.size, grids)
        panel.set_xlabel(f"mean {share.mean():.1%}, most {share.max():.0%}")
    panel.set_xlim(0, image.width)
    panel.set_ylim(image.height, 0)


def _lay(panel, strength: np.ndarray, size: tuple[int, int], grids: dict[str, Any]) -> None:
    """Colour over a picture of ``size``, as strong as ``strength`` [rows, columns] on [0, 1]."""
    from matplotlib.colors import to_rgb

    colour = np.empty((*strength.shape, 4))
    colour[..., :3], colour[..., 3] = to_rgb(COLOURS[1]), STRONG * strength
    extent = (0, size[0] * grids["width"], size[1] * grids["height"], 0)
    panel.imshow(colour, extent=extent, interpolation="nearest")


def _short(text: str, width: int = 34) -> str:
    """The question's first line, cut."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= width else f"{line[: width - 1]}…"


def shares(text: str, grids: dict[str, Any]) -> np.ndarray:
    """[rows, columns] share of the (layer, KV head) pairs that keep each token of the first picture."""
    values = np.frombuffer(base64.b64decode(text), np.uint8)
    rows, columns = grids["rows"], grids["columns"]
    return values[: rows * columns].reshape(rows, columns) / 255
