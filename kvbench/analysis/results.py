"""Tidy results: one row per cell and metric."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.analysis.bootstrap import Difference, Estimate, differences, estimate
from kvbench.analysis.significance import binary, holm, mcnemar
from kvbench.benchmarks.base import Scores
from kvbench.benchmarks.series import Series
from kvbench.errors import UserError
from kvbench.store import Cell, cells

COLUMNS = [
    *("model", "benchmark", "method", "setting", "budget", "window", "seed", "prompt"),
    *("metric", "value", "n", "clusters"),
    *("base", "base_window", "delta", "ci_low", "ci_high", "p", "p_holm"),
    *("kept_mean", "kept_min", "kept_max", "digest"),
]


@dataclass(frozen=True)
class Entry:
    """A cell with its scores (None: not scored) and realised entries per layer and KV head."""

    cell: Cell
    setting: str
    scores: Scores | None
    kept: dict[str, float] | None

    @property
    def label(self) -> str:
        """Method and, where a store holds several variants of it, what tells them apart."""
        return f"{self.cell.method} {self.setting}".strip()

    @property
    def window(self) -> int | None:
        """Queries of the observation window; None for fullkv."""
        return self.cell.config["method"].get("window")


def entries(store: Path, found: Sequence[Cell] | None = None) -> list[Entry]:
    """Every cell of a store (or those of it given as ``found``), scored or not, in the store's order."""
    from kvbench.analysis.scoring import load_scores

    found = cells(store) if found is None else found
    names = settings(found)
    result: list[Entry] = []
    clusters: dict[int, str] = {}
    for cell in found:
        loaded = load_scores(cell)
        scores, kept = loaded if loaded is not None else (None, None)
        if scores is not None:  # cells with the same questions share one copy
            clusters = scores.clusters = clusters if scores.clusters == clusters else scores.clusters
        result.append(Entry(cell, names[cell.digest], scores, kept))
    return result


def settings(found: Sequence[Cell]) -> dict[str, str]:
    """By digest: the options in which cells of one benchmark and method differ, as ``window=16 radius=3``."""
    options = {cell.digest: cell.options for cell in found}
    alike: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in found:
        alike[cell.model, cell.benchmark, cell.method].append(cell)
    result = {}
    for group in alike.values():
        keys = sorted({key for cell in group for key in options[cell.digest]})
        varied = [key for key in keys if len({repr(options[cell.digest].get(key)) for cell in group}) > 1]
        for cell in group:
            mine = options[cell.digest]
            parts = [f"{key.rsplit('.', 1)[-1]}={mine[key]}" for key in varied if key in mine]
            drawn = any(part.startswith("seed=") for part in parts)  # by the run's seed, or by its own option
            if len({cell.seed for cell in group}) > 1 and not drawn:
                parts.append(f"seed={cell.seed}")
            if len({cell.prompt for cell in group}) > 1:
                parts.append(f"prompt={cell.prompt}")
            result[cell.digest] = " ".join(parts)
    return result


def base_of(entry: Entry, all_entries: Sequence[Entry], method: str | None = None) -> Entry | None:
    """The scored cell that a difference is from: same questions and budget, the nearest settings.

    ``method`` defaults to the entry's without its last part: ``snapkv+bacon`` for ``snapkv+bacon
    refresh=rcr``, ``snapkv`` for ``snapkv+bacon``; a capacity alone has no base. This is what a difference
    means in every figure and CSV and, unless ``--against`` names a method, in every table. fullkv, which has
    no budget, is a base at every budget; a method is none of itself.
    """
    cell = entry.cell
    if method == cell.method:
        return None
    if method is None:
        if cell.method != cell.first:
            method = cell.first
        elif "+" in cell.method:
            method = cell.method.partition("+")[0]
        else:
            return None
    alike = [
        other
        for other in all_entries
        if other.scores is not None
        and other.cell.digest != cell.digest
        and other.cell.method == method
        and (other.cell.model, other.cell.benchmark) == (cell.model, cell.benchmark)
        and other.cell.budget in (cell.budget, None)
        and (other.cell.seed, other.cell.prompt) == (cell.seed, cell.prompt)
    ]
    mine = cell.options

    def unlike(other: Entry) -> tuple[bool, int]:
        theirs = other.cell.options
        return mine.get("window") != theirs.get("window"), sum(mine.get(key) != theirs[key] for key in theirs)

    return min(alike, key=unlike, default=None)


def mean(entry: Entry, metric: str, **options: Any) -> Estimate:
    """A cell's own mean with its 95 % interval; NaN where it is not scored or a score is broken."""
    values = Series.of(entry.scores.per_sample.get(metric, {}) if entry.scores is not None else {})
    if entry.scores is None or not np.isfinite(values.data).all():
        return estimate({})
    return estimate(values, clusters=entry.scores.clusters, **options)


def compare_all(
    pairs: Sequence[tuple[Entry, Entry | None]], metric: str, **options: Any
) -> list[Difference | UserError | None]:
    """Paired differences entry - other of one benchmark on the same resamples.

    None stands for a pair without two sets of per-sample values, a UserError that names the samples for one
    whose samples do not match. ``options`` are those of ``resampling.intervals``.
    """
    known = [
        (place, entry, other)
        for place, (entry, other) in enumerate(pairs)
        if all(e is not None and e.scores and metric in e.scores.per_sample for e in (entry, other))
    ]
    found: list[Difference | UserError | None] = [None] * len(pairs)
    if known:
        values = [(e.scores.per_sample[metric], other.scores.per_sample[metric]) for _, e, other in known]
        names = [
            tuple(f"{e.label} ({metric} on {e.cell.benchmark})" for e in (entry, other))
            for _, entry, other in known
        ]
        clusters = {index: page for _, e, _ in known for index, page in e.scores.clusters.items()}
        gaps = differences(values, names, clusters=clusters, **options)
        for (place, *_), gap in zip(known, gaps, strict=True):
            found[place] = gap
    return found


def rows(all_entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One row per scored cell and metric; ``base`` names what the difference is from, see ``base_of``.

    ``p`` and ``p_holm`` are those of ``exact_tests``.
    """
    bases = {entry.cell.digest: base_of(entry, all_entries) for entry in all_entries}
    gaps = _gaps(all_entries, bases)
    tests = exact_tests(all_entries, bases)
    result = []
    for entry in all_entries:
        if entry.scores is None or entry.kept is None:
            continue
        cell, scores = entry.cell, entry.scores
        for metric, value in sorted(scores.metrics.items()):
            gap = gaps.get((cell.digest, metric))
            base = bases[cell.digest] if gap is not None else None
            p, p_holm = tests.get((cell.digest, metric), (None, None)) if base else (None, None)
            asked = scores.per_sample.get(metric) or scores.clusters or range(scores.n)
            result.append(
                {
                    "model": cell.model,
                    "benchmark": cell.benchmark,
                    "method": cell.method,
                    "setting": entry.setting,
                    "budget": cell.budget,
                    "window": entry.window,
                    "seed": cell.seed,
                    "prompt": cell.prompt,
                    "metric": metric,
                    "value": value,
                    "n": len(asked),
                    "clusters": len({scores.clusters.get(index, index) for index in asked}),
                    "base": base.label if base else None,
                    "base_window": base.window if base else None,
                    "delta": gap.delta if gap else None,
                    "ci_low": gap.low if gap else None,
                    "ci_high": gap.high if gap else None,
                    "p": p,
                    "p_holm": p_holm,
                    "kept_mean": entry.kept["mean"],
                    "kept_min": entry.kept["min"],
                    "kept_max": entry.kept["max"],
                    "digest": cell.digest,
                }
            )
    return result


def exact_tests(
    all_entries: Sequence[Entry], bases: Mapping[str, Entry | None]
) -> dict[tuple[str, str], tuple[float, float]]:
    """(p, adjusted p) by (digest, metric) of every cell that has a base and scores of 0 and 1 throughout.

    p is McNemar's exact one. The family that Holm's adjustment holds for is every such comparison of one
    model and metric: all benchmarks, methods and budgets. ``bases``: by digest.
    """
    families: dict[tuple[str, str], dict[tuple[str, str], float]] = defaultdict(dict)
    for entry in all_entries:
        base = bases[entry.cell.digest]
        if entry.scores is None or base is None or base.scores is None:
            continue
        for metric in sorted(entry.scores.per_sample.keys() & base.scores.per_sample.keys()):
            values = [Series.of(one.scores.per_sample[metric]) for one in (entry, base)]
            alike = len(values[0]) and np.array_equal(values[0].index, values[1].index)
            if alike and all(map(binary, values)):
                families[entry.cell.model, metric][entry.cell.digest, metric] = mcnemar(*values)
    return {
        name: (p, adjusted)
        for family in families.values()
        for (name, p), adjusted in zip(family.items(), holm(family).values(), strict=True)
    }


def _gaps(all_entries: Sequence[Entry], bases: dict[str, Entry | None]) -> dict[tuple[str, str], Difference]:
    """Differences by (digest, metric); a broken score has none (its cell keeps its own row)."""
    asked: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for entry in all_entries:
        cell = entry.cell
        for metric in entry.scores.metrics if entry.scores else ():
            asked[cell.model, cell.benchmark, cell.seed, cell.prompt, metric].append(entry)
    found = {}
    for (*_, metric), group in asked.items():
        gaps = compare_all([(entry, bases[entry.cell.digest]) for entry in group], metric)
        for entry, gap in zip(group, gaps, strict=True):
            if isinstance(gap, Difference):
                found[entry.cell.digest, metric] = gap
    return found


def results_csv(store: Path) -> str:
    """The tidy results of a store as CSV; empty where there is no value (fullkv has no budget, say)."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows(entries(store)):
        writer.writerow({key: "" if value is None or value != value else value for key, value in row.items()})
    return out.getvalue()
