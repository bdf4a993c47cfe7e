"""Tidy results: one row per cell and metric."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.analysis.bootstrap import Difference, difference
from kvbench.benchmarks.base import Scores
from kvbench.errors import UserError
from kvbench.store import Cell, cells

COLUMNS = [
    *("model", "benchmark", "method", "setting", "budget", "window", "seed", "prompt"),
    *("metric", "value", "n"),
    *("base", "base_window", "delta", "ci_low", "ci_high", "kept_mean", "kept_min", "kept_max", "digest"),
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
    result = []
    for cell in found:
        loaded = load_scores(cell)
        scores, kept = loaded if loaded is not None else (None, None)
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
    if entry.scores is None or other is None or other.scores is None:
        return None
    ours, theirs = entry.scores.per_sample.get(metric), other.scores.per_sample.get(metric)
    if ours is None or theirs is None:
        return None
    where = f"{metric} on {entry.cell.benchmark}"
    return difference(ours, theirs, (f"{entry.label} ({where})", f"{other.label} ({where})"))


def rows(all_entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One row per scored cell and metric; ``base`` names what the difference is from, see ``base_of``."""
    result = []
    for entry in all_entries:
        if entry.scores is None or entry.kept is None:
            continue
        cell = entry.cell
        base = base_of(entry, all_entries)
        for metric, value in sorted(entry.scores.metrics.items()):
            try:
                gap = compare(entry, base, metric)
            except UserError:  # a broken score keeps its own row; it has no difference to show
                gap = None
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
                    "n": len(entry.scores.per_sample.get(metric, ())) or entry.scores.n,
                    "base": base.label if base is not None and gap is not None else None,
                    "base_window": base.window if base is not None and gap is not None else None,
                    "delta": gap.delta if gap else None,
                    "ci_low": gap.low if gap else None,
                    "ci_high": gap.high if gap else None,
                    "kept_mean": entry.kept["mean"],
                    "kept_min": entry.kept["min"],
                    "kept_max": entry.kept["max"],
                    "digest": cell.digest,
                }
            )
    return result


def results_csv(store: Path) -> str:
    """The tidy results of a store as CSV; empty where there is no value (fullkv has no budget, say)."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows(entries(store)):
        writer.writerow({key: "" if value is None or value != value else value for key, value in row.items()})
    return out.getvalue()
