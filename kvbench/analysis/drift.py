"""What re-selection did, sample by sample: stored traces and scores of a store in two tidy frames.

Everything that ``kvbench analyze drift`` shows follows from them. Policies are compared within a
*selection*: the cells that differ in nothing but what refreshes them (same model, benchmark, seed, prompt,
first selection and budget).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.analysis.results import Entry, entries, settings
from kvbench.store import Cell, canonical, load_responses

if TYPE_CHECKING:
    import pandas

FIDELITY = "fidelity_rougeL"
ONE_SHOT = "none"  # the policy that never refreshes: the first selection stands
GROUP = ["model", "benchmark", "selection"]
KEY = [*GROUP, "policy"]
# Quantities of a trace and the units their mean runs over: all layer-steps, or those with a step before.
WEIGHTS = {
    "refreshed": "layer_steps",
    "stayed": "adjacent",
    "overlap": "layer_steps",
    "drift": "layer_steps",
    "reads": "layer_steps",
    "dots": "layer_steps",
    "held": "layer_steps",
}
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def policies(found: Sequence[Cell]) -> pandas.DataFrame:
    """One row per compressed cell whose selection has a cell that refreshes.

    Columns: KEY, name (of the policy), options (of the policy, by name), cell
    (digest). ``policy`` is the name and those that tell variants apart, as ``threshold tau=0.05``.
    """
    import pandas

    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in found:
        if cell.budget is not None:
            groups[_selection_key(cell)].append(cell)
    groups = {key: cells for key, cells in groups.items() if any(cell.refresh != ONE_SHOT for cell in cells)}
    titles = _titles([cells[0] for cells in groups.values()])
    rows = []
    for cells in groups.values():
        varied = settings([dataclasses.replace(cell, method=cell.refresh) for cell in cells])
        for cell in cells:
            name = cell.refresh
            rows.append(
                {
                    "model": cell.model,
                    "benchmark": cell.benchmark,
                    "selection": titles[cells[0].digest],
                    "policy": f"{name} {varied[cell.digest]}".strip(),
                    "name": name,
                    "options": _options(cell),
                    "cell": cell.digest,
                }
            )
    return pandas.DataFrame(rows, columns=[*KEY, "name", "options", "cell"])


def _whole(found: Sequence[Cell], model: str, benchmark: str) -> pandas.DataFrame:
    """The uncompressed cells of a model and benchmark, as rows of ``policies``."""
    import pandas

    place = (model, benchmark, None)
    full = [cell for cell in found if (cell.model, cell.benchmark, cell.budget) == place]
    varied = settings(full)
    titles = [f"{cell.method} {varied[cell.digest]}".strip() for cell in full]
    rows = [
        {"model": cell.model, "benchmark": cell.benchmark, "selection": title, "policy": title}
        | {"name": cell.method, "options": {}, "cell": cell.digest}
        for cell, title in zip(full, titles, strict=True)
    ]
    return pandas.DataFrame(rows, columns=[*KEY, "name", "options", "cell"])


def _selection_key(cell: Cell) -> str:
    """All that a cell is, but for its refresh."""
    method = {key: value for key, value in cell.config["method"].items() if key != "refresh"}
    # The source of a selection without its refresh is a part of the source with it.
    return canonical({**cell.config, "method": method, "code": None})


def _titles(heads: Sequence[Cell]) -> dict[str, str]:
    """By digest: ``snapkv+bacon budget=64`` and what else tells selections apart."""
    plain = []
    for cell in heads:
        method = {**cell.config["method"], "refresh": None}
        plain.append(dataclasses.replace(cell, method=cell.first, config={**cell.config, "method": method}))
    varied = settings(plain)
    return {cell.digest: f"{cell.first} budget={cell.budget} {varied[cell.digest]}".strip() for cell in heads}


def _options(cell: Cell) -> dict[str, Any]:
    mine = cell.options
    return {key.partition(".")[2]: value for key, value in mine.items() if key.startswith("refresh.")}


@dataclass(frozen=True)
class Drift:
    """``samples``: one row per policy and sample. ``thresholds``: τ by policy and decode step.

    ``samples`` has the columns of ``policies`` and sample (id), index, cluster, value (the metric; NaN: not
    scored), full_value (of the uncompressed answer), length (tokens of the uncompressed answer) and, NaN
    without a trace, the means over the sample's layer-steps named in WEIGHTS, steps, layer_steps and
    adjacent (layer-steps that have a step before them). A policy without any answer has one empty row.

    ``thresholds`` has KEY, step, samples (still decoding), mean and the quantiles q10 to q90 over samples.

    ``uncompressed``: as ``samples``, of the traced uncompressed cells beside them; selection and policy are
    ``fullkv``.
    """

    samples: pandas.DataFrame
    thresholds: pandas.DataFrame
    uncompressed: pandas.DataFrame


def load(store: Path, metric: str = FIDELITY) -> Drift:
    """All frames of a store; empty when none of its cells refreshes."""
    import pandas

    scored = {entry.cell.digest: entry for entry in entries(store)}
    known = policies([entry.cell for entry in scored.values()])
    samples = [pandas.DataFrame(columns=_SAMPLE_COLUMNS)]
    whole = [pandas.DataFrame(columns=_SAMPLE_COLUMNS)]
    thresholds = [pandas.DataFrame(columns=_TAU_COLUMNS)]
    for (model, benchmark), here in known.groupby(["model", "benchmark"]):
        answers = load_responses(store, model, benchmark)
        means, taus = _reduced(store, model, benchmark)
        part = here.merge(
            _values([scored[digest] for digest in here["cell"]], answers, metric), "left", "cell"
        )
        part = part.merge(_uncompressed(scored.values(), answers, here, metric), "left", ["cell", "index"])
        samples.append(part.merge(means, "left", ["cell", "index"])[_SAMPLE_COLUMNS])
        full = _whole([entry.cell for entry in scored.values()], model, benchmark)
        values = _values([scored[digest] for digest in full["cell"]], answers, metric)
        part = full.merge(values, "left", "cell")
        whole.append(part.merge(means, "inner", ["cell", "index"]).reindex(columns=_SAMPLE_COLUMNS))
        thresholds.append(here[[*KEY, "cell"]].merge(taus, "inner", "cell")[_TAU_COLUMNS])
    samples, whole = (_joined(parts).astype({"index": "Int64"}) for parts in (samples, whole))
    return Drift(samples, _joined(thresholds), whole)


def _joined(parts: Sequence[pandas.DataFrame]) -> pandas.DataFrame:
    """Rows of all parts; the first, empty one gives the columns where there are none."""
    import pandas

    return pandas.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


_SAMPLE_COLUMNS = [
    *(*KEY, "name", "options", "cell", "sample", "index", "cluster"),
    *("value", "full_value", "length", *WEIGHTS, "steps", "layer_steps", "adjacent"),
]
_TAU_COLUMNS = [*KEY, "step", "samples", "mean", *(f"q{round(100 * q)}" for q in QUANTILES)]


def _values(found: Sequence[Entry], answers: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """cell, sample, index, cluster, value of every answered sample of these entries."""
    here = answers[answers["cell"].isin([entry.cell.digest for entry in found])]
    frame = here[["cell", "sample", "index"]].reset_index(drop=True)
    scores = {entry.cell.digest: entry.scores for entry in found if entry.scores is not None}
    value, cluster = [], []
    for digest, sample, index in frame.itertuples(index=False):
        mine = scores.get(digest)
        value.append(mine.per_sample.get(metric, {}).get(index) if mine else None)
        cluster.append(mine.clusters.get(index, sample) if mine else sample)
    return frame.assign(value=value, cluster=cluster).astype({"value": float})


def _uncompressed(
    found: Iterable[Entry], answers: pandas.DataFrame, here: pandas.DataFrame, metric: str
) -> pandas.DataFrame:
    """cell, index, length and full_value: the uncompressed answer to each cell's questions."""
    import pandas

    full = {
        canonical([entry.cell.config[part] for part in ("model", "benchmark", "seed", "prompt")]): entry
        for entry in found
        if entry.cell.budget is None
    }
    cells = {entry.cell.digest: entry.cell for entry in found}
    rows = []
    for digest in here["cell"]:
        config = cells[digest].config
        entry = full.get(canonical([config[part] for part in ("model", "benchmark", "seed", "prompt")]))
        if entry is None:
            continue
        values = entry.scores.per_sample.get(metric, {}) if entry.scores else {}
        mine = answers[answers["cell"] == entry.cell.digest]
        for index, tokens in zip(mine["index"], mine["tokens"], strict=True):
            rows.append((digest, index, float(len(tokens)), values.get(index)))
    frame = pandas.DataFrame(rows, columns=["cell", "index", "length", "full_value"])
    return frame.astype({"index": "int64", "full_value": float})


def _reduced(store: Path, model: str, benchmark: str) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """``reduce`` and ``tau_by_step`` of a benchmark's traces, of which one cell's are in memory at a time."""
    import pandas

    from kvbench.store import each_trace
    from kvbench.store.trace import COLUMNS

    parts = [(reduce(frame), tau_by_step(frame)) for _, frame in each_trace(store, model, benchmark)]
    if not parts:
        empty = pandas.DataFrame({name: [] for name in COLUMNS})
        parts = [(reduce(empty), tau_by_step(empty))]
    means, taus = zip(*parts, strict=True)
    return _joined(means), _joined(taus)


def reduce(traces: pandas.DataFrame) -> pandas.DataFrame:
    """Means per cell and sample index of the frame of ``store.load_traces``; see ``Drift``."""
    grouped = traces.astype({"cell": str}).groupby(["cell", "sample"], sort=False)
    means = {name: (name, "mean") for name in WEIGHTS}
    frame = grouped.agg(
        **means, steps=("step", "nunique"), layer_steps=("step", "size"), adjacent=("stayed", "count")
    )
    return (
        frame.astype({name: "float64" for name in WEIGHTS}).reset_index().rename(columns={"sample": "index"})
    )


def tau_by_step(traces: pandas.DataFrame) -> pandas.DataFrame:
    """cell, step, samples, mean, q10 ... q90 of τ over samples; cells without a threshold are left out.

    A sample's τ at a step is the mean over layers (rcr changes it from layer to layer).
    """
    import pandas

    known = traces[traces["tau"].notna()].astype({"tau": "float64", "cell": str})
    per_sample = known.groupby(["cell", "sample", "step"], sort=True)["tau"].mean()
    grouped = per_sample.groupby(["cell", "step"], sort=True)
    columns = {"samples": grouped.size(), "mean": grouped.mean()}
    columns |= {f"q{round(100 * q)}": grouped.quantile(q) for q in QUANTILES}
    return pandas.DataFrame(columns).reset_index()
