"""The same cells in two stores, as two code versions or two machines answered them.

Cells are the same when model name, benchmark name, method with its options, budget, seed and prompt agree;
what else differs between their configs or circumstances is what the comparison is about, and is printed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.analysis.bootstrap import Difference, difference
from kvbench.analysis.resampling import DEFAULT, FEWEST
from kvbench.analysis.results import Entry, entries
from kvbench.analysis.scoring import benchmark_config, name_of
from kvbench.analysis.significance import binary, holm, mcnemar
from kvbench.errors import UserError
from kvbench.rendering import Record, plain
from kvbench.store import Responses, canonical, every_cell, load_folder

Read = Callable[[Path], Responses]


@dataclass(frozen=True)
class CellPair:
    """One cell in both stores. ``gap`` is second - first; flips count a score that moved down or up.

    ``p`` is McNemar's exact one where all scores are 0 or 1.
    """

    first: Entry
    second: Entry
    metric: str
    scale: float
    common: int  # samples that both have answered
    changed: int  # of these, with another text
    gap: Difference | None
    means: tuple[float, ...]  # of first and second, over the common samples
    lost: int
    won: int
    differs: list[str]  # parts of the configs, as ``model.revision: a -> b``
    p: float = math.nan

    @property
    def flip_rate(self) -> float:
        """Share of the samples scored in both whose score changed; NaN without one."""
        return (self.lost + self.won) / self.gap.n if self.gap else math.nan


@dataclass(frozen=True)
class Comparison:
    """Pairs, cells that one store alone has, and circumstances that differ."""

    pairs: list[CellPair]
    only: tuple[list[str], list[str]]
    environment: list[str]


def compare(first: Path, second: Path, interval: str = DEFAULT) -> Comparison:
    """``interval``: a method of ``resampling.METHODS``. Raises UserError when the stores share no cell."""
    ours, theirs = _by_cell(first), _by_cell(second)
    read = functools.cache(load_folder)  # each journal once, however many cells it answers
    shared = [key for key in ours if key in theirs]
    if not shared:
        raise UserError(
            f"{first} and {second} have no cell in common: run the same models, benchmarks, methods and "
            "budgets into both."
        )
    only = (
        [name_of(entry.cell) for key, entry in ours.items() if key not in theirs],
        [name_of(entry.cell) for key, entry in theirs.items() if key not in ours],
    )
    environment = dict.fromkeys(
        line
        for key in shared
        for line in _changes(_environment(ours[key], read), _environment(theirs[key], read))
    )
    pairs = [_pair(ours[key], theirs[key], read, interval) for key in shared]
    return Comparison(pairs, only, list(environment))


def _by_cell(store: Path) -> dict[str, Entry]:
    found = {}
    # Two stores may tell what a changed method does, so earlier versions count here, after the present one.
    for entry in sorted(entries(store, every_cell(store)), key=lambda entry: not entry.cell.earlier):
        config = entry.cell.config
        parts = [config["model"]["name"], config["benchmark"]["name"]]
        parts += [config[part] for part in ("method", "budget", "seed", "prompt")]
        found.setdefault(canonical(parts), entry)
    if not found:
        raise UserError(f"there are no cells in {store}: name a store that `kvbench run` wrote.")
    return found


def _pair(ours: Entry, theirs: Entry, read: Read, interval: str) -> CellPair:
    cfg = benchmark_config(ours.cell)
    metric = cfg.get("metric", "score")
    texts = [_texts(ours, read), _texts(theirs, read)]
    common = sorted(texts[0].keys() & texts[1].keys())
    values = [(entry.scores.per_sample.get(metric, {}) if entry.scores else {}) for entry in (ours, theirs)]
    usable = [index for index in common if all(math.isfinite(given.get(index, math.nan)) for given in values)]
    before, after = ({index: given[index] for index in usable} for given in values)
    gap = None
    if usable and ours.scores:
        gap = difference(after, before, clusters=ours.scores.clusters, method=interval)
    return CellPair(
        first=ours,
        second=theirs,
        metric=metric,
        scale=float(cfg.get("scale", 1)),
        common=len(common),
        changed=sum(texts[0][index] != texts[1][index] for index in common),
        gap=gap,
        means=tuple(sum(v.values()) / len(v) if v else math.nan for v in (before, after)),
        lost=sum(after[index] < before[index] for index in usable),
        won=sum(after[index] > before[index] for index in usable),
        differs=_changes(ours.cell.config, theirs.cell.config),
        p=mcnemar(after, before) if usable and binary(after) and binary(before) else math.nan,
    )


def _texts(entry: Entry, read: Read) -> dict[int, str]:
    answers = read(entry.cell.folder).answers[entry.cell.digest]
    return {index: record["text"] for index, record in answers.items()}


def _environment(entry: Entry, read: Read) -> dict[str, Any]:
    """What could have changed a cell's answers (versions, device, ...); all values where it was resumed."""
    found: dict[str, list[str]] = {}
    for facts in read(entry.cell.folder).environment(entry.cell.digest):
        for key, value in _flat(facts).items():
            values = found.setdefault(key, [])
            if str(value) not in values:
                values.append(str(value))
    return {key: " and ".join(sorted(values)) for key, values in found.items()}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {k: v for key, part in value.items() for k, v in _flat(part, f"{prefix}.{key}".strip(".")).items()}


def _changes(first: Any, second: Any) -> list[str]:
    """``versions.torch: 2.4 -> 2.5`` for every leaf that differs."""
    ours, theirs = _flat(first), _flat(second)
    keys = sorted(ours.keys() | theirs.keys())
    return [
        f"{key}: {ours.get(key)} -> {theirs.get(key)}" for key in keys if ours.get(key) != theirs.get(key)
    ]


COLUMNS = ("cell", "metric", "samples", "first", "second", "difference", "95 % interval", "texts changed")
COLUMNS += ("lost", "won", "flip rate", "p", "p Holm")
LEGEND = (
    "first, second: means over the common samples; difference: second - first, with its 95 % interval over"
    f" pages or pictures (none from fewer than {FEWEST}); lost and won: samples whose score fell or rose; p:"
    " McNemar's exact test, where all scores are 0 or 1 (questions count as independent); p Holm: adjusted"
    " over one family, all such rows of this comparison"
)


def table(found: Comparison, title: str = "") -> Record:
    """A row under COLUMNS for every metric of a common cell, and the sentences that stand under them."""
    rows = []
    adjusted = holm({place: pair.p for place, pair in enumerate(found.pairs)})
    for place, pair in enumerate(found.pairs):
        gap = pair.gap
        rows.append(
            [
                f"{pair.first.cell.model}: {name_of(pair.first.cell)} {pair.first.setting}".strip(),
                pair.metric,
                str(pair.common),
                *(_number(mean * pair.scale) for mean in pair.means),
                _number(gap.delta * pair.scale, "+") if gap else "—",
                f"[{_number(gap.low * pair.scale, '+')},{_number(gap.high * pair.scale, '+')}]"
                if gap and math.isfinite(gap.low)
                else "no interval"
                if gap
                else "—",
                str(pair.changed),
                str(pair.lost),
                str(pair.won),
                _number(pair.flip_rate),
                _number(pair.p),
                _number(adjusted[place]),
            ]
        )
    notes = [LEGEND, *(f"circumstances: {line}" for line in found.environment)]
    notes += [f"config: {line}" for line in dict.fromkeys(x for pair in found.pairs for x in pair.differs)]
    for where, names in zip(("first", "second"), found.only, strict=True):
        notes += [f"only in the {where} store: {name}" for name in names]
    return plain(title, COLUMNS, rows, notes, left=2)


def _number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.4g}" if math.isfinite(value) else "n/a"
