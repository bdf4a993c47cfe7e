"""The results of a store in the shape of the papers' Table 1.

Methods down, benchmarks x budgets across, FullKV on top. A method with a score on top of a capacity
(``snapkv+bacon``) shows its difference from that capacity alone (``snapkv``) at the same budget, a method
with a refresh the difference from itself without it, with the paired 95 % interval; ``*`` marks
an interval that excludes 0. The best compressed value of a column is marked only when its lead over every
other method is outside noise as well. A cell that is missing is a hole, and the command that fills it is
printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.analysis.results import Entry, entries
from kvbench.analysis.tables.build import build
from kvbench.analysis.tables.csv import to_csv
from kvbench.analysis.tables.shape import DEFAULT, Choice, Table
from kvbench.analysis.tables.show import record
from kvbench.checks import suggest
from kvbench.errors import UserError
from kvbench.rendering import FORMATS, render

if TYPE_CHECKING:
    from kvbench.planning.experiments import Experiment

__all__ = ["Choice", "Table", "beside_paper", "build", "record", "table"]


def table(store: Path, format: str = "text", width: int | None = None, choice: Choice = DEFAULT) -> str:
    """Render every model of a store.

    Raises UserError for an empty store, an unknown format, and a method or benchmark that it lacks.
    """
    found = _entries(store, format)
    here = {entry.cell.benchmark for entry in found}
    if unknown := [name for name in choice.benchmarks if name not in here]:
        raise UserError(f"{store} has no benchmark {unknown[0]!r}: {suggest(unknown[0], here)}")
    found = [e for e in found if not choice.benchmarks or e.cell.benchmark in choice.benchmarks]
    known = {entry.cell.method for entry in found}
    if choice.against is not None and choice.against not in known:
        raise UserError(f"{store} has no cell of {choice.against!r}: {suggest(choice.against, known)}")
    models = dict.fromkeys(entry.cell.model for entry in found)
    tables = [build(found, model, store, choice) for model in models]
    if format == "csv":
        return to_csv(tables)
    return render(list(map(record, tables)), format, width)


def beside_paper(store: Path, experiment: Experiment, format: str = "text", width: int | None = None) -> str:
    """Render a store's cells of an experiment beside the values of the paper's table.

    Raises UserError, which says why, where nothing of the store stands beside a published value.
    """
    from kvbench.analysis.tables import beside

    found = _entries(store, format)
    shown = beside.beside(found, experiment)
    if format == "csv":
        return beside.to_csv(shown)
    return render(beside.records(found, shown, experiment, store), format, width)


def published(found: Sequence[Entry], store: Path) -> list[tuple[str, str]]:
    """(what it is, HTML) of every table of the papers that a store has a value of, the fullest first."""
    from kvbench.analysis.tables import beside
    from kvbench.planning import experiments

    models = {entry.cell.model for entry in found}
    result = []
    for experiment in experiments.of_papers():
        if not models & {row.model for row in experiment.published()}:
            continue
        try:
            shown = beside.beside(found, experiment)
        except UserError:
            continue  # nothing of it, or several cells measure one value
        known = sum(pair.measured is not None for pair in shown)
        name = f"{experiment.paper} table {experiment.table}: {known} of {len(shown)} values measured"
        html = render(beside.records(found, shown, experiment, store), "html")
        result.append((known / len(shown), name, html))
    return [(name, html) for _, name, html in sorted(result, key=lambda item: -item[0])]


def _entries(store: Path, format: str) -> list[Entry]:
    if format not in FORMATS:
        raise UserError(f"there is no table format {format!r}: choose from {', '.join(FORMATS)}.")
    found = entries(store)
    if not found:
        raise UserError(f"there are no results in {store}: name a store that `kvbench run` wrote, store=DIR.")
    return found
