"""Every figure that a store's results allow, drawn with matplotlib; see ``kvbench figures``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.analysis.figures.style import FORMATS
from kvbench.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "draw", "write"]


def draw(store: Path) -> dict[str, Figure]:
    """Name -> figure. Raises UserError for an empty store; a store without any score gives no figure."""
    from kvbench.analysis.figures import observed
    from kvbench.analysis.figures.style import style
    from kvbench.analysis.results import entries
    from kvbench.observations import FOLDER

    found = entries(store)
    if not found and not (store / FOLDER).is_dir():
        raise UserError(f"there are no results in {store}: name a store that `kvbench run` wrote, store=DIR.")
    with style():
        drawn = [*(_all(found, store) if found else ()), *observed.figures(store)]
        return {_plain(name): figure for name, figure in drawn if figure is not None}


def _all(found: Sequence, store: Path) -> Iterator[tuple[str, Figure | None]]:
    from kvbench.analysis import drift
    from kvbench.analysis.figures import budget, cost, heatmap, traces
    from kvbench.analysis.tables import build

    known = drift.load(store)
    reads = cost.reads_of(known.samples)
    for model in dict.fromkeys(entry.cell.model for entry in found):
        item = build(found, model, store)
        mine = [entry for entry in found if entry.cell.model == model]
        yield f"score-against-budget-{model}", budget.score_against_budget(item)
        yield f"realised-entries-{model}", budget.realised_entries(item)
        yield f"cost-against-fidelity-{model}", cost.cost_against_fidelity(mine, reads)
    yield from heatmap.option_maps(found)
    if len(known.samples):
        from kvbench.store import load_traces

        yield from traces.trace_figures(known.samples, known.thresholds, load_traces(store))


def _plain(name: str) -> str:
    """A file name of a figure's name."""
    return re.sub(r"[^A-Za-z0-9._+=-]+", "-", name).strip("-.")


def write(store: Path, out: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw and save every figure in every format, pictures under their retained tokens included.

    Raises UserError for a format that does not exist.
    """
    from kvbench.analysis.figures import overlay
    from kvbench.analysis.figures.style import save
    from kvbench.store.files import storage_error

    for name in formats:
        if name not in FORMATS:
            raise UserError(f"figures have no format {name!r}: choose from {', '.join(FORMATS)}.")
    paths = []
    for name, figure in itertools.chain(draw(store).items(), overlay.figures(store)):
        for suffix in formats:
            path = out / f"{name}.{suffix}"
            try:
                out.mkdir(parents=True, exist_ok=True)
                save(figure, path)
            except OSError as error:
                raise storage_error(path, error, "--out DIR") from error
            paths.append(path)
    return paths
