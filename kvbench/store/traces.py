"""Traces of re-selection: STORE/MODEL/BENCHMARK/traces/DIGEST/INDEX.parquet, one a cell and sample.

A trace is written whole before its answer enters the journal, so a run that dies in between does that
sample again. A trace without an answer counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.store import layout
from kvbench.store.files import storage_error
from kvbench.store.responses import Responses, load_folder

if TYPE_CHECKING:
    import pandas


def _folder(cell: layout.Cell) -> Path:
    return cell.folder / "traces" / cell.digest


def traced(cell: layout.Cell) -> set[int]:
    """Indices of the samples of a cell that have a trace."""
    return {int(path.stem) for path in _folder(cell).glob("*.parquet") if path.stem.isdigit()}


def done(cell: layout.Cell, responses: Responses, trace: bool) -> set[int]:
    """Indices of the samples that a run need not do again: answered, and with ``trace`` traced too."""
    answered = set(responses.answers[cell.digest])
    return answered & traced(cell) if trace else answered


def write_trace(cell: layout.Cell, index: int, trace: Any) -> None:
    """Store the ``kvbench.store.trace.Trace`` of one answer."""
    from kvbench.store.trace import write

    path = _folder(cell) / f"{index}.parquet"
    try:
        # A writer that was killed left its answer unwritten too, so the sample comes here again.
        for torn in path.parent.glob(f"{path.name}.*.tmp"):
            torn.unlink(missing_ok=True)
        write(path, [(cell.digest, index, trace)])
    except OSError as error:
        raise storage_error(path, error) from error


def load_traces(
    store: Path | str, model: str | None = None, benchmark: str | None = None
) -> pandas.DataFrame:
    """One row per (cell, sample, step, layer) of every answer that has a trace; sorted in this order.

    Columns: those of ``kvbench.store.trace``, where their meaning and units stand. ``cell`` is a digest
    (categorical), ``sample`` the sample's index (int64), as in ``load_responses``.
    """
    import numpy
    import pandas

    from kvbench.store.trace import COLUMNS

    frames = dict(each_trace(store, model, benchmark))
    if not frames:
        return pandas.DataFrame({name: [] for name in COLUMNS})
    digests = numpy.repeat(list(frames), [len(frame) for frame in frames.values()])
    table = pandas.concat(frames.values(), ignore_index=True)
    table["cell"] = pandas.Categorical(digests, categories=list(frames))
    return table[list(COLUMNS)]


def each_trace(
    store: Path | str, model: str | None = None, benchmark: str | None = None
) -> Iterator[tuple[str, pandas.DataFrame]]:
    """``load_traces`` cell by cell, for stores whose traces do not fit into memory together."""
    import pandas

    from kvbench.store.trace import COLUMNS, read

    answered: dict[Path, Responses] = {}
    for cell in layout.cells(store):
        if (model and cell.model != model) or (benchmark and cell.benchmark != benchmark):
            continue
        if cell.folder not in answered:
            answered = {cell.folder: load_folder(cell.folder)}
        found = sorted(done(cell, answered[cell.folder], trace=True))
        frames = [read(_folder(cell) / f"{index}.parquet").assign(sample=index) for index in found]
        if frames:
            yield (
                cell.digest,
                pandas.concat(frames, ignore_index=True).assign(cell=cell.digest)[list(COLUMNS)],
            )
