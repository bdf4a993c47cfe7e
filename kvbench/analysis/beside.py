"""A store's results next to the values that a paper prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvbench import reference
from kvbench.analysis.bootstrap import interval, labels
from kvbench.analysis.results import Entry, entries, method_options
from kvbench.analysis.scoring import benchmark_config
from kvbench.errors import UserError
from kvbench.methods import registry
from kvbench.methods.method import parse


@dataclass(frozen=True)
class Pair:
    """A published value and what was measured in the same unit: mean, 95 % interval, samples."""

    published: reference.Row
    value: float
    low: float
    high: float
    n: int

    @property
    def difference(self) -> float:
        """Measured - published."""
        return self.value - self.published.number


def beside(store: Path, table: str) -> list[Pair]:
    """Every value of a published table, as ``bacon:1``, that a store has measured, in the table's order.

    Raises UserError for a table that does not exist and for a store that has none of its cells.
    """
    paper, colon, number = table.partition(":")
    if not colon:
        raise UserError(f"a table is PAPER:TABLE, as in bacon:1, not {table!r}.")
    rows, found = reference.rows(paper, number), entries(store)
    pairs = [pair for row in rows for pair in [_pair(row, found)] if pair is not None]
    if not pairs:
        raise UserError(
            f"{store} has no scored cell of {paper} table {number}: "
            "run its experiment, which `kvbench list experiments` names, with profile=paper."
        )
    return pairs


def _pair(row: reference.Row, found: Sequence[Entry]) -> Pair | None:
    alike = [entry for entry in found if _same(row, entry)]
    if not alike:
        return None
    if len(alike) > 1:
        names = ", ".join(entry.cell.digest for entry in alike)
        raise UserError(
            f"{row.method} on {row.benchmark} is measured by several cells ({names}): keep one of them."
        )
    scores = alike[0].scores
    cfg = benchmark_config(alike[0].cell)
    usual = 100.0 if row.unit == "%" else 1.0
    scale = float(cfg.get("scale", usual)) if row.metric == cfg.get("metric") else usual
    values = scores.per_sample.get(row.metric, {})
    low, high = math.nan, math.nan
    if values:
        order = sorted(values)
        low, high = interval(np.array([values[i] for i in order]), clusters=labels(order, scores.clusters))
    value = scores.metrics[row.metric]
    return Pair(row, scale * value, scale * low, scale * high, len(values) or scores.n)


def _same(row: reference.Row, entry: Entry) -> bool:
    """Whether a cell is what the row is about; options that the row does not name are at their defaults."""
    cell = entry.cell
    asked = dict(row.options)
    if entry.scores is None or row.metric not in entry.scores.metrics:
        return False
    if (row.model, row.benchmark, row.method, row.budget) != (
        cell.model,
        cell.benchmark,
        cell.method,
        cell.budget,
    ):
        return False
    if cell.prompt != asked.pop("prompt", "default") or cell.config["method"].get("refresh"):
        return False
    options = {key.rpartition(".")[2]: value for key, value in method_options(cell).items()}
    usual = _defaults(row.method)
    return all(
        _text(options.get(key)) == asked.get(key, _text(value)) for key, value in usual.items()
    ) and set(asked) <= set(usual)


def _defaults(method: str) -> dict[str, object]:
    """Options of a method, window included, at their defaults."""
    parsed = parse(method)
    if parsed is None:
        return {}
    found = {"window": registry.lookup("score", parsed[1]).default_window}
    for kind, name in zip(("capacity", "score"), parsed, strict=True):
        found |= {
            option.name: option.default for option in registry.options(kind, name) if not option.runtime
        }
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_markdown(pairs: Sequence[Pair]) -> str:
    """Measured, interval, paper and difference, a line a value."""
    heads = ["model", "benchmark", "metric", "method", "setting", "budget"]
    columns = [*heads, "measured", "95 % CI", "paper", "difference", "n"]
    lines = [columns, ["---"] * len(heads) + ["---:"] * 5]
    for pair in pairs:
        row = pair.published
        digits = len(row.value.partition(".")[2])
        keys = ["" if getattr(row, key) is None else str(getattr(row, key)) for key in heads]
        band = "n/a" if math.isnan(pair.low) else f"[{pair.low:.{digits}f}, {pair.high:.{digits}f}]"
        mark = " !" if row.flag else ""
        lines.append(
            [
                *keys,
                f"{pair.value:.{digits}f}",
                band,
                row.value + mark,
                f"{pair.difference:+.{digits}f}",
                str(pair.n),
            ]
        )
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    flags = [f"! {pair.published.method}: {pair.published.flag}." for pair in pairs if pair.published.flag]
    return "\n".join([text, *flags])
