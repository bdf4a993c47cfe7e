"""Tidy results: one row per cell and metric."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.analysis.bootstrap import Difference, differences
from kvbench.analysis.significance import binary, holm, mcnemar
from kvbench.benchmarks.base import Scores
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


def entries(store: Path) -> list[Entry]:
    """Every cell of a store, scored or not, in the store's order."""
    from kvbench.analysis.scoring import load_scores

    found = cells(store)
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
    options = {cell.digest: method_options(cell) for cell in found}
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
            if len({cell.seed for cell in group}) > 1:
                parts.append(f"seed={cell.seed}")
            if len({cell.prompt for cell in group}) > 1:
                parts.append(f"prompt={cell.prompt}")
            result[cell.digest] = " ".join(parts)
    return result


def method_options(cell: Cell) -> dict[str, Any]:
    """Flat options of a cell's method: ``window``, ``score.radius``, ``capacity.ratio``, ..."""
    flat: dict[str, Any] = {}
    for key, value in cell.config["method"].items():
        if key == "name":
            continue
        if isinstance(value, dict):
            flat.update({f"{key}.{name}": option for name, option in value.items() if name != "name"})
        else:
            flat[key] = value
    return flat


def base_of(entry: Entry, all_entries: Sequence[Entry], method: str | None = None) -> Entry | None:
    """The scored cell that a difference is from: same questions and budget, the nearest settings.

    ``method`` defaults to the entry's without its last part: ``snapkv+bacon`` for ``snapkv+bacon
    refresh=rcr``, ``snapkv`` for ``snapkv+bacon``; a capacity alone has no base. This is what a difference
    means in every table, figure and CSV.
    """
    cell = entry.cell
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
        and (other.cell.model, other.cell.benchmark, other.cell.budget)
        == (cell.model, cell.benchmark, cell.budget)
        and (other.cell.seed, other.cell.prompt) == (cell.seed, cell.prompt)
    ]
    mine = method_options(cell)

    def unlike(other: Entry) -> tuple[bool, int]:
        theirs = method_options(other.cell)
        return mine.get("window") != theirs.get("window"), sum(mine.get(key) != theirs[key] for key in theirs)

    return min(alike, key=unlike, default=None)


def compare(entry: Entry, other: Entry | None, metric: str) -> Difference | None:
    """Paired difference entry - other; None without two sets of per-sample values.

    Raises UserError, naming the samples, when they do not match.
    """
    (gap,) = compare_all([(entry, other)], metric)
    if isinstance(gap, UserError):
        raise gap
    return gap


def compare_all(
    pairs: Sequence[tuple[Entry, Entry | None]], metric: str
) -> list[Difference | UserError | None]:
    """``compare`` of many pairs of one benchmark on the same resamples; errors stand in a pair's place."""
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
        gaps = differences(values, names, clusters=known[0][1].scores.clusters)
        for (place, *_), gap in zip(known, gaps, strict=True):
            found[place] = gap
    return found


def rows(all_entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One row per scored cell and metric; ``base`` names what the difference is from, see ``base_of``.

    ``p`` is McNemar's, of scores that are 0 or 1; ``p_holm`` adjusts it for every comparison of the same
    metric and model in the store, the family that the rows declare.
    """
    bases = {entry.cell.digest: base_of(entry, all_entries) for entry in all_entries}
    gaps = _gaps(all_entries, bases)
    result = []
    for entry in all_entries:
        if entry.scores is None or entry.kept is None:
            continue
        cell, scores = entry.cell, entry.scores
        for metric, value in sorted(scores.metrics.items()):
            gap = gaps.get((cell.digest, metric))
            base = bases[cell.digest] if gap is not None else None
            asked = scores.per_sample.get(metric) or range(scores.n)
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
                    "p": _p(entry, base, metric),
                    "p_holm": None,
                    "kept_mean": entry.kept["mean"],
                    "kept_min": entry.kept["min"],
                    "kept_max": entry.kept["max"],
                    "digest": cell.digest,
                }
            )
    families: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for place, row in enumerate(result):
        if row["p"] is not None:
            families[row["model"], row["metric"]][place] = row["p"]
    for family in families.values():
        for place, p in holm(family).items():
            result[place]["p_holm"] = p
    return result


def _p(entry: Entry, base: Entry | None, metric: str) -> float | None:
    """McNemar's p where both cells' scores are 0 or 1."""
    if base is None or entry.scores is None or base.scores is None:
        return None
    values = [one.scores.per_sample[metric] for one in (entry, base)]
    return mcnemar(*values) if all(map(binary, values)) else None


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
