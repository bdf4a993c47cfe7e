"""What stores hold, as data frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.errors import UserError

if TYPE_CHECKING:
    import pandas


def results(store: Path | str) -> pandas.DataFrame:
    """One row per cell and metric of a store, the columns of results.csv; new answers are scored first.

    Raises UserError for a folder that is no store.
    """
    import pandas

    from kvbench import analysis
    from kvbench.analysis.results import COLUMNS, entries, rows

    _there(store)
    analysis.score_store(store)
    return pandas.DataFrame(rows(entries(Path(store))), columns=COLUMNS)


def compare(first: Path | str, second: Path | str, interval: str = "t") -> pandas.DataFrame:
    """The same cells of two stores: means, paired difference (second - first) with its 95 % interval, flips.

    interval: "t" over pages or pictures, or "percentile" or "BCa" for a bootstrap. Raises UserError where the
    stores have no cell in common.
    """
    import pandas

    from kvbench import analysis
    from kvbench.analysis import compare as comparing

    for store in (first, second):
        _there(store)
        analysis.score_store(store)
    found = comparing.compare(Path(first), Path(second), interval)
    return pandas.DataFrame(
        {
            "model": pair.first.cell.model,
            "benchmark": pair.first.cell.benchmark,
            "method": pair.first.label,
            "budget": pair.first.cell.budget,
            "metric": pair.metric,
            "n": pair.common,
            "first": pair.means[0],
            "second": pair.means[1],
            "delta": pair.gap.delta if pair.gap else None,
            "ci_low": pair.gap.low if pair.gap else None,
            "ci_high": pair.gap.high if pair.gap else None,
            "changed": pair.changed,
            "lost": pair.lost,
            "won": pair.won,
            "p": pair.p,
        }
        for pair in found.pairs
    )


def _there(store: Path | str) -> None:
    if not Path(store).is_dir():
        raise UserError(f"there is no store at {store}: name a folder that `kvbench run` wrote.")
