"""Which value stands where: methods down, benchmarks x budgets across, fullkv on top."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbench.analysis.bootstrap import Difference
from kvbench.analysis.results import Entry, base_of, compare_all, exact_tests
from kvbench.analysis.scoring import benchmark_config
from kvbench.analysis.tables.footer import footer
from kvbench.analysis.tables.shape import DEFAULT, Choice, Column, Table, Value, family, is_full
from kvbench.errors import UserError

# The papers' order; other benchmarks follow by name.
_ORDER = (
    "docqa",
    "docvqa",
    "textqa",
    "textvqa",
    "chartqa",
    "caption",
    "textcaps",
    "describe",
    "detailcaps",
    "documents",
)


def build(found: Sequence[Entry], model: str, store: Path, choice: Choice = DEFAULT) -> Table:
    """The table of one model."""
    mine = [entry for entry in found if entry.cell.model == model]
    columns, configs = [], {}
    for benchmark in sorted({entry.cell.benchmark for entry in mine}, key=_rank):
        here = [entry for entry in mine if entry.cell.benchmark == benchmark]
        cfg = configs[benchmark] = benchmark_config(here[0].cell)
        budgets = sorted({e.cell.budget for e in here if e.cell.budget is not None}, reverse=True)
        title = cfg.get("title") or benchmark
        for metric in _shown_metrics(cfg):
            scale = float(cfg.get("scale", 1)) if metric == cfg.get("metric") else 1.0
            columns += [Column(benchmark, title, metric, scale, budget) for budget in budgets or [0]]
    labels = list(dict.fromkeys(e.label for e in mine if e.cell.budget is None))
    if not labels and any(cfg.get("reference") == "answers" for cfg in configs.values()):
        labels = ["fullkv"]  # whose answers fidelity is held against
    labels += sorted(dict.fromkeys(e.label for e in mine if e.cell.budget is not None), key=family)
    result = Table(model, columns, {label: {} for label in labels}, choice)
    bases = {entry.cell.digest: base_of(entry, mine, choice.against) for entry in mine}
    tests = exact_tests(mine, bases)
    for label in labels:
        for column in columns:
            result.grid[label][column] = _value(mine, label, column, bases, tests)
    for column in columns:
        column_values = [row[column] for row in result.grid.values()]
        _compare(column_values, column.metric, choice.interval)
        compressed = [row[column] for label, row in result.grid.items() if not is_full(label)]
        _mark_best(compressed, column.metric, choice.interval)
    result.footer = footer(result, mine, configs, store)
    return result


def _rank(benchmark: str) -> tuple[int, str]:
    stem = benchmark.removesuffix("_mini")
    return (_ORDER.index(stem) if stem in _ORDER else len(_ORDER)), benchmark


def _shown_metrics(cfg: dict[str, Any]) -> list[str]:
    """The headline; where it is fidelity, the other metrics too, as they say what fidelity does not."""
    headline = cfg.get("metric", "score")
    if cfg.get("reference") != "answers":
        return [headline]
    return list(dict.fromkeys([headline, *(cfg.get("metrics") or [])]))


def _value(
    mine: Sequence[Entry],
    label: str,
    column: Column,
    bases: Mapping[str, Entry | None],
    tests: Mapping[tuple[str, str], tuple[float, float]],
) -> Value:
    budget = None if is_full(label) else column.budget
    found = [
        e
        for e in mine
        if e.label == label and e.cell.benchmark == column.benchmark and e.cell.budget == budget
    ]
    if not found:
        return Value(None)
    entry = found[0]
    if entry.scores is None or column.metric not in entry.scores.metrics:
        return Value(entry)
    value = Value(entry, entry.scores.metrics[column.metric], base=bases[entry.cell.digest])
    value.p, value.p_holm = tests.get((entry.cell.digest, column.metric), (None, None))
    return value


def _compare(values: Sequence[Value], metric: str, interval: str) -> None:
    """Fill in each value's difference from its base; the footer says why one has none."""
    known = [value for value in values if value.entry is not None and value.value is not None]
    gaps = compare_all([(value.entry, value.base) for value in known], metric, method=interval)
    for value, gap in zip(known, gaps, strict=True):
        value.gap = gap if isinstance(gap, Difference) else None
        value.trouble = str(gap) if isinstance(gap, UserError) else ""


def _mark_best(values: Sequence[Value], metric: str, interval: str) -> None:
    """Mark the highest compressed value when it leads every other one by more than noise."""
    values = [value for value in values if value.value is not None and math.isfinite(value.value)]
    if len(values) < 2:
        return
    best = max(values, key=lambda value: value.value)
    pairs = [(best.entry, other.entry) for other in values if other is not best]
    gaps = compare_all(pairs, metric, method=interval)
    best.best = all(isinstance(gap, Difference) and gap.low > 0 for gap in gaps)
