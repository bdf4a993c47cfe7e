"""Traces of re-selection: STORE/MODEL/BENCHMARK/traces/DIGEST/INDEX.parquet, one a cell and sample.

A trace is written whole before its answer enters the journal, so a run that dies in between does that
sample again. A trace without an answer counts for nothing.
"""

from __future__ import annotations

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
    """Store the ``kvbench.engine.trace.Trace`` of one answer."""
    from kvbench.engine.trace import write

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

    Columns: those of ``kvbench.engine.trace``, where their meaning and units stand. ``cell`` is a digest
    (categorical), ``sample`` the sample's index (int64), as in ``load_responses``.
    """
    import pandas

    from kvbench.engine.trace import COLUMNS, read

    found = [
        cell
        for cell in layout.cells(store)
        if (not model or cell.model == model) and (not benchmark or cell.benchmark == benchmark)
    ]
    answered = {folder: load_folder(folder) for folder in {cell.folder for cell in found}}
    frames, digests = [], []
    for cell in found:
        for index in sorted(done(cell, answered[cell.folder], trace=True)):
            frame = read(_folder(cell) / f"{index}.parquet")
            frames.append(frame.drop(columns="cell").assign(sample=index))
            digests += [cell.digest] * len(frame)
    if not digests:
        return pandas.DataFrame({name: [] for name in COLUMNS})
    table = pandas.concat(frames, ignore_index=True)
    order = list(dict.fromkeys(cell.digest for cell in found))
    table["cell"] = pandas.Categorical(digests, categories=order)
    return table[list(COLUMNS)]
