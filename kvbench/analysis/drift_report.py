"""``kvbench analyze drift``: every analysis of a store's traces as frames, CSV files and readable tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvbench import rendering
from kvbench.analysis import correlation, decision, drift, policies
from kvbench.analysis.drift import KEY, ONE_SHOT
from kvbench.analysis.drift_sections import sections
from kvbench.analysis.results import entries
from kvbench.checks import suggest
from kvbench.errors import UserError
from kvbench.store import write_atomic

if TYPE_CHECKING:
    import pandas


def analyses(
    store: Path,
    metric: str = drift.FIDELITY,
    source: str = ONE_SHOT,
    share: float = 0.25,
    seed: int = 0,
    splits: decision.Splits | None = None,
) -> dict[str, pandas.DataFrame]:
    """All frames by name: samples, fidelity, rates, terciles, correlations, tau, decisions.

    Raises UserError when no cell of the store refreshes, or none has the metric.
    """
    import pandas

    loaded = drift.load(store, metric)
    if loaded.samples.empty:
        raise UserError(
            f"no cell of {store} re-selects while decoding: run with refresh=rcr, say, and trace=true."
        )
    known = {name for entry in entries(store) if entry.scores for name in entry.scores.per_sample}
    if metric not in known | {drift.FIDELITY}:
        raise UserError(f"no cell of {store} has the metric {metric!r}: {suggest(metric, known)}")
    return {
        "samples": loaded.samples.drop(columns="options"),
        "fidelity": policies.fidelity(loaded.samples),
        "rates": pandas.concat([policies.rates(part) for part in (loaded.samples, loaded.uncompressed)]),
        "terciles": policies.terciles(loaded.samples, source),
        "correlations": correlation.correlations(loaded.samples, source),
        "tau": loaded.thresholds,
        "decisions": decision.decisions(loaded.samples, share, seed, splits),
    }


def write(store: Path, frames: dict[str, pandas.DataFrame]) -> Path:
    """Write each frame to STORE/analysis/drift-NAME.csv; returns the folder."""
    folder = store / "analysis"
    for name, frame in frames.items():
        write_atomic(folder / f"drift-{name}.csv", frame.to_csv(index=False, lineterminator="\n"))
    return folder


def render(frames: dict[str, pandas.DataFrame], metric: str, format: str, width: int | None = None) -> str:
    """All sections; csv: all frames below one another, named by the column ``table``."""
    if format == "csv":
        import pandas

        parts = [frame.assign(table=name) for name, frame in frames.items()]
        columns = ["table", *KEY]
        joined = pandas.concat(parts, ignore_index=True)
        rest = [name for name in joined.columns if name not in columns]
        return joined[[*columns, *rest]].to_csv(index=False, lineterminator="\n")
    return rendering.render(list(sections(frames, metric)), format, width)
