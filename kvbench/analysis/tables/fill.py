"""The commands that fill a table's holes, with every override that tells their cells from the defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kvbench.analysis.results import Entry
from kvbench.analysis.tables.shape import Table, is_full
from kvbench.errors import UserError
from kvbench.methods import plugins
from kvbench.methods.registry import KINDS
from kvbench.paths import BUILT_IN, is_folder
from kvbench.planning import config, plan, specs
from kvbench.store import Cell
from kvbench.support.contents import PREFIX

# Revisions of data or weights that are no hub's are worked out, and so is a prompt's wording.
_SOURCE = {"model": "weights", "benchmark": "data"}
_SKIPPED = {"prompt", "wording", *config.MODEL_RUNTIME, *config.BENCHMARK_RUNTIME}
_PLAIN = re.compile(r"[\w./+-]+", re.ASCII)


def commands(result: Table, mine: Sequence[Entry], store: Path) -> list[str]:
    """Commands that fill the holes, benchmarks and methods with the same holes in one."""
    holes: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}  # (benchmark, method, overrides) -> budgets
    for label, row in result.grid.items():
        for column, value in row.items():
            if value.entry is not None and value.entry.scores is not None:
                continue
            if not is_full(label) and column.budget <= _window(label, mine):
                continue  # see ``impossible``
            key = (column.benchmark, label.split(" ")[0], _overrides(label, column.benchmark, mine))
            budgets = holes.setdefault(key, [])
            if not is_full(label) and column.budget not in budgets:
                budgets.append(column.budget)
    methods: dict[tuple[Any, ...], list[str]] = {}
    for (benchmark, method, overrides), budgets in holes.items():
        methods.setdefault((benchmark, overrides, tuple(budgets)), []).append(method)
    benchmarks: dict[tuple[Any, ...], list[str]] = {}
    for (benchmark, overrides, budgets), names in methods.items():
        samples = max((e.scores.n for e in mine if e.cell.benchmark == benchmark and e.scores), default=0)
        benchmarks.setdefault((tuple(names), budgets, overrides, samples), []).append(benchmark)
    lines = []
    for (names, budgets, overrides, samples), where in benchmarks.items():
        sweep = ["-m"] if max(map(len, (names, budgets, where))) > 1 else []
        axes = [("model", [result.model]), ("benchmark", where), ("method", names), ("budget", budgets)]
        words = [f"{key}={','.join(map(str, values))}" for key, values in axes if values]
        words += [*overrides, *([f"limit={samples}"] if samples else []), word("store", str(store))]
        lines.append(shlex.join(["kvbench", "run", *sweep, *words]))
    return lines


def impossible(result: Table, mine: Sequence[Entry]) -> list[str]:
    """Which holes no command can fill, as their budget is not above the observation window."""
    lines = []
    for label in (label for label in result.grid if not is_full(label)):
        window = _window(label, mine)
        for budget in sorted({c.budget for c, v in result.grid[label].items() if v.entry is None}):
            if budget <= window:
                lines.append(
                    f"{label}: no cell at budget {budget}, which is not above its window of {window}."
                )
    return lines


def _window(label: str, mine: Sequence[Entry]) -> int:
    """The smallest observation window of a label's cells."""
    return min((e.window for e in mine if e.label == label and e.window), default=0)


def _overrides(label: str, benchmark: str, mine: Sequence[Entry]) -> tuple[str, ...]:
    """What gives the label's settings on a benchmark; the window is that of the benchmark's other cells."""
    alike = sorted((e for e in mine if e.label == label), key=lambda e: e.cell.benchmark != benchmark)
    here = [e.cell for e in mine if e.cell.benchmark == benchmark]
    if not alike:
        return tuple(of_job(here[0])) if here else ()
    cell = alike[0].cell
    same = [one for one in here if (one.seed, one.prompt) == (cell.seed, cell.prompt)]
    words = of_job(next(iter(same or here), cell), cell)
    if is_full(label):
        return tuple(words)
    options = cell.options
    windows = {one.config["method"].get("window") for one in here} - {None}
    if "window=" not in alike[0].setting and len(windows) == 1:
        options["window"] = windows.pop()
    return (*words, *_of_method(cell, options))


def of_job(
    cell: Cell, asked: Cell | None = None, groups: Sequence[str] = ("model", "benchmark")
) -> list[str]:
    """Overrides of groups, seed and prompt that a cell was run with; the last two of ``asked``."""
    asked = asked or cell
    words = [f"prompt={asked.prompt}"] if asked.prompt != "default" else []
    words += [f"seed={asked.seed}"] if asked.seed else []
    usual = _usual(cell.model, cell.benchmark)
    for part in groups if usual is not None else ():
        mine, source = cell.config[part], _SOURCE[part]
        skipped = set(_SKIPPED)
        if str(mine.get(source)) in BUILT_IN or is_folder(str(mine.get(source))):
            skipped.add("revision")
        words += _differing(mine, usual[part], f"{part}.", skipped)
    return words


def _of_method(cell: Cell, options: dict[str, Any]) -> list[str]:
    words = [f"refresh={cell.refresh}"] if cell.refresh != "none" else []
    parts = [(kind, (cell.config["method"].get(kind) or {}).get("name")) for kind in KINDS]
    files = sorted({str(file) for part in parts if (file := plugins.source(*part))})
    words += [word("plugins", files)] if files else []
    usual = _usual_options(cell.model, cell.benchmark, cell.first, cell.refresh)
    return words + [
        word(key if key.startswith("refresh.") else f"method.{key}", value)
        for key, value in options.items()
        if value != usual.get(key, value)
    ]


def _differing(mine: dict[str, Any], usual: dict[str, Any], prefix: str, skipped: Iterable[str]) -> list[str]:
    """Overrides of the keys of a group that differ; ++ sets one whether its file has it or not."""
    return [
        ("" if key in usual else "++") + word(f"{prefix}{key}", value)
        for key, value in mine.items()
        if key not in skipped and (key not in usual or value != usual[key])
    ]


@cache
def _usual(model: str, benchmark: str) -> dict[str, Any] | None:
    """The identity config of fullkv with nothing else set; None for a model or benchmark that is not here."""
    try:
        return plan.job([f"model={model}", f"benchmark={benchmark}", "method=fullkv"], []).cells[0].config
    except UserError:
        return None


@cache
def _usual_options(model: str, benchmark: str, method: str, refresh: str) -> dict[str, Any]:
    """Options of a method when none is set, the model's window included; empty where it is not here."""
    known = _usual(model, benchmark) is not None
    try:
        spec = specs.usual(method, refresh, [f"model={model}", f"benchmark={benchmark}"] if known else [])
    except UserError:
        return {}
    found = Cell.from_config("", {**_NOTHING, "method": spec}, Path()).options
    return found if known else {**found, "window": None}  # a model that is not here may have another


_NOTHING = {"model": {"name": ""}, "benchmark": {"name": ""}, "budget": None, "seed": 0, "prompt": "default"}


def word(key: str, value: Any) -> str:
    """KEY=VALUE as Hydra reads it back; a file that is known by its content alone is named FILE."""
    if isinstance(value, str) and value.startswith(PREFIX):
        return f"{key}=FILE"
    return f"{key}={_literal(value)}"


def files(mine: Iterable[Cell]) -> list[str]:
    """What FILE stands for in commands: the digests of the files that cells read."""
    found = {}
    for cell in mine:
        parts = {"model": cell.config["model"], "method": cell.options}
        for group, keys in parts.items():
            found |= {f"{group}.{k}": v for k, v in keys.items() if str(v).startswith(PREFIX)}
    return [
        f"FILE of {key}: the one whose SHA-256 is {value[len(PREFIX) :]}." for key, value in found.items()
    ]


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_literal(part)}' for key, part in value.items())}}}"
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.fullmatch(text) and not _otherwise(text)):
        return text
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", text) + "'"  # else the last would escape the quote


def _otherwise(text: str) -> bool:
    """Whether Hydra would read a plain word as something else than text."""
    if text.lower() in ("null", "true", "false", "nan", "inf", "-inf", "+inf"):
        return True
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True
