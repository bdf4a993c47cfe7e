"""The results of a store in the shape of the papers' Table 1.

Methods down, benchmarks x budgets across, FullKV on top. A method with a score on top of a capacity
(``snapkv+bacon``) shows its difference from that capacity alone (``snapkv``) at the same budget, with the
paired bootstrap 95 % interval; ``*`` marks an interval that excludes 0. The best compressed value of a
column is marked only when its lead over every other method is outside noise as well. A cell that is
missing is a hole, and the command that fills it is printed.
"""

from __future__ import annotations

import csv
import io
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvbench.analysis.bootstrap import Difference
from kvbench.analysis.results import Entry, base_of, compare, entries, method_options
from kvbench.analysis.scoring import benchmark_config
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
FORMATS = ("text", "markdown", "csv")
HOLE = "—"
_METRIC_TITLES = {
    "anls": "ANLS",
    "exact_match": "accuracy",
    "relaxed_overall": "relaxed accuracy",
    "fidelity_rougeL": "fidelity",
    "first_divergence": "first divergence",
    "answer_agreement": "same answer",
}


@dataclass(frozen=True)
class Column:
    """One metric of one benchmark at one budget."""

    benchmark: str
    title: str
    metric: str
    scale: float
    budget: int

    @property
    def heading(self) -> str:
        """Benchmark and metric."""
        return f"{self.title} {_METRIC_TITLES.get(self.metric, self.metric.split('_')[-1])}"

    def show(self, value: float) -> str:
        """A value in the column's unit: percentages and steps with one decimal, fractions with three."""
        if not math.isfinite(value):
            return "n/a"
        return f"{value * self.scale:.{self.digits}f}"

    @property
    def digits(self) -> int:
        return 1 if self.scale == 100 or self.metric == "first_divergence" else 3


@dataclass
class Value:
    """What one cell of the table shows; ``entry`` is None where nothing was run."""

    entry: Entry | None
    value: float | None = None
    gap: Difference | None = None
    best: bool = False


@dataclass
class Table:
    """One model's results. ``grid[label][column]``; labels in the order of the rows, fullkv first."""

    model: str
    columns: list[Column]
    grid: dict[str, dict[Column, Value]]
    footer: list[str] = field(default_factory=list)


def table(store: Path, format: str = "text", width: int | None = None) -> str:
    """Render every model of a store. Raises UserError for an empty store or an unknown format."""
    if format not in FORMATS:
        raise UserError(f"there is no table format {format!r}: choose from {', '.join(FORMATS)}.")
    found = entries(store)
    if not found:
        raise UserError(f"there are no results in {store}: name a store that `kvbench run` wrote, store=DIR.")
    tables = [build(found, model, store) for model in dict.fromkeys(entry.cell.model for entry in found)]
    if format == "csv":
        return to_csv(tables)
    if format == "markdown":
        return "\n".join(to_markdown(item) for item in tables)
    return "\n".join(to_text(item, width) for item in tables)


def build(found: Sequence[Entry], model: str, store: Path) -> Table:
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
    labels = labels or ["fullkv"]
    labels += sorted(dict.fromkeys(e.label for e in mine if e.cell.budget is not None), key=_family)
    result = Table(model, columns, {label: {} for label in labels})
    for label in labels:
        for column in columns:
            result.grid[label][column] = _value(mine, label, column)
    for column in columns:
        _mark_best(column, result)
    result.footer = _footer(result, mine, configs, store)
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


def _family(label: str) -> tuple[str, bool, str]:
    """A capacity's methods together, the plain one first."""
    method = label.split(" ")[0]
    return method.split("+")[0], "+" in method, label


def _is_full(label: str) -> bool:
    return label.split(" ")[0] == "fullkv"


def _value(mine: Sequence[Entry], label: str, column: Column) -> Value:
    budget = None if _is_full(label) else column.budget
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
    value = Value(entry, entry.scores.metrics[column.metric])
    if "+" in entry.cell.method:
        value.gap = _difference(entry, base_of(entry, mine, entry.cell.method.split("+")[0]), column.metric)
    return value


def _difference(entry: Entry, other: Entry | None, metric: str) -> Difference | None:
    try:
        return compare(entry, other, metric)
    except UserError:
        return None  # the footer names what is wrong with the scores


def _mark_best(column: Column, result: Table) -> None:
    """Mark the highest compressed value when it leads every other one by more than noise."""
    values = [
        row[column]
        for label, row in result.grid.items()
        if not _is_full(label) and row[column].value is not None
    ]
    values = [value for value in values if math.isfinite(value.value)]
    if len(values) < 2:
        return
    best = max(values, key=lambda value: value.value)
    gaps = [_difference(best.entry, other.entry, column.metric) for other in values if other is not best]
    best.best = all(gap is not None and gap.low > 0 for gap in gaps)


def _footer(result: Table, mine: Sequence[Entry], configs: dict[str, dict], store: Path) -> list[str]:
    lines = []
    for benchmark in configs:
        here = [e for e in mine if e.cell.benchmark == benchmark and e.scores is not None]
        counts = sorted({e.scores.n for e in here})
        samples = " or ".join(str(n) for n in counts) if counts else "no"
        budgets = sorted({e.cell.budget for e in here if e.cell.budget is not None}, reverse=True)
        kept = [f"{budget}: {_kept(here, budget)}" for budget in budgets]
        full = _kept(here, None)
        parts = [f"full: {full}"] * bool(full) + kept
        line = f"{benchmark}: {samples} sample{'' if counts == [1] else 's'}"
        lines.append(line + (f"; realised entries per head {', '.join(parts)}" if parts else ""))
        if 1 in counts:
            lines.append(f"{benchmark}: one sample alone has no interval.")
        elif any(1 < n < 10 for n in counts):
            lines.append(f"{benchmark}: intervals from fewer than 10 samples are rough; raise limit=.")
    lines += _warnings(mine)
    holes = commands(result, mine, store)
    if holes:
        lines.append(f"{HOLE} is missing; to fill:")
        lines += [f"  {command}" for command in holes]
    return lines


def _kept(here: Sequence[Entry], budget: int | None) -> str:
    """``128.0`` or ``126.3 (32 to 412)``: mean over samples, layers and heads of all methods at a budget."""
    kept = [e.kept for e in here if e.cell.budget == budget and e.kept]
    if not kept:
        return ""
    low, high = min(k["min"] for k in kept), max(k["max"] for k in kept)
    mean = sum(k["mean"] for k in kept) / len(kept)
    return f"{mean:.1f}" if low == high else f"{mean:.1f} ({low} to {high})"


def _warnings(mine: Sequence[Entry]) -> list[str]:
    found = [warning for e in mine if e.scores is not None for warning in e.scores.warnings]
    for entry in mine:
        for metric, values in (entry.scores.per_sample if entry.scores else {}).items():
            bad = sum(not math.isfinite(value) for value in values.values())
            if bad:
                found.append(
                    f"{entry.label} on {entry.cell.benchmark}: {metric} is not a number for {bad} samples."
                )
    return list(dict.fromkeys(found))


def commands(result: Table, mine: Sequence[Entry], store: Path) -> list[str]:
    """Commands that fill the holes, benchmarks and methods with the same holes in one."""
    holes: dict[tuple[str, str, str], list[int]] = {}  # (benchmark, method, overrides) -> budgets
    for label, row in result.grid.items():
        for column, value in row.items():
            if value.entry is not None and value.entry.scores is not None:
                continue
            key = (column.benchmark, label.split(" ")[0], _overrides(label, column.benchmark, mine))
            budgets = holes.setdefault(key, [])
            if not _is_full(label) and column.budget not in budgets:
                budgets.append(column.budget)
    methods: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for (benchmark, method, overrides), budgets in holes.items():
        methods.setdefault((benchmark, overrides, tuple(budgets)), []).append(method)
    benchmarks: dict[tuple[str, ...], list[str]] = {}
    for (benchmark, overrides, budgets), names in methods.items():
        samples = max((e.scores.n for e in mine if e.cell.benchmark == benchmark and e.scores), default=0)
        tail = (
            (f" budget={_list(budgets)}" if budgets else "")
            + overrides
            + (f" limit={samples}" if samples else "")
        )
        benchmarks.setdefault((",".join(names), tail), []).append(benchmark)
    lines = []
    for (names, tail), where in benchmarks.items():
        sweep = " -m" if "," in names + tail or len(where) > 1 else ""
        lines.append(
            f"kvbench run{sweep} model={result.model} benchmark={_list(where)}"
            f" method={names}{tail} store={store}"
        )
    return lines


def _list(values: Sequence[object]) -> str:
    return ",".join(str(value) for value in values)


def _overrides(label: str, benchmark: str, mine: Sequence[Entry]) -> str:
    """Hydra overrides that give the label's settings; the window is that of the benchmark's other cells."""
    if _is_full(label):
        return ""
    alike = sorted((e for e in mine if e.label == label), key=lambda e: e.cell.benchmark != benchmark)
    if not alike:
        return ""
    options = method_options(alike[0].cell)
    varied = {part.split("=")[0] for part in alike[0].setting.split()}
    windows = {e.cell.config["method"].get("window") for e in mine if e.cell.benchmark == benchmark}
    windows -= {None}
    if "window" not in varied and len(windows) == 1:
        options["window"] = windows.pop()
    wanted = {key: value for key, value in options.items() if key.rsplit(".", 1)[-1] in varied | {"window"}}
    return "".join(f" method.{key}={value}" for key, value in wanted.items() if value is not None)


def _parts(label: str, column: Column, value: Value) -> tuple[str, str, str]:
    """Value, difference and interval as shown; the last two may be empty."""
    if value.entry is None or value.entry.scores is None:
        return HOLE, "", ""
    if value.value is None:
        return "n/a", "", ""
    text = column.show(value.value)
    best = _BEST if value.best else ""
    if value.gap is None or not math.isfinite(value.gap.delta):
        return text, best, ""
    shown = f"{abs(value.gap.delta) * column.scale:.{column.digits}f}"
    arrow = "→" if float(shown) == 0 else "↑" if value.gap.delta > 0 else "↓"
    delta = f"{arrow}{shown}{'*' if value.gap.sure else ''}{best}"
    if not math.isfinite(value.gap.low):
        return text, delta, "no interval"
    digits = min(column.digits, 2)
    low, high = (f"{bound * column.scale:+.{digits}f}" for bound in (value.gap.low, value.gap.high))
    return text, delta, f"[{low},{high}]"


_BEST = "●"
LEGEND = (
    "↑↓→ difference from the same capacity without the score, [95 % interval, paired bootstrap]; * interval"
    " excludes 0; {best} best compressed value, lead outside noise."
)


def _groups(columns: Sequence[Column]) -> list[list[Column]]:
    """Columns of one benchmark and metric."""
    groups: dict[tuple[str, str], list[Column]] = {}
    for column in columns:
        groups.setdefault((column.benchmark, column.metric), []).append(column)
    return list(groups.values())


@dataclass
class _Layout:
    """Widths of one group of columns: value, difference and the whole cell."""

    columns: list[Column]
    value: int
    cell: int

    @property
    def width(self) -> int:
        return (self.cell + _GAP) * len(self.columns)


_GAP = 2  # blanks before each column


def _layout(item: Table, columns: list[Column]) -> _Layout:
    parts = [_parts(label, column, row[column]) for label, row in item.grid.items() for column in columns]
    value = max(len(part[0]) for part in parts)
    delta = max(len(part[1]) for part in parts)
    cell = max(value + 1 + delta if delta else value, max(len(part[2]) for part in parts))
    heading = -(-len(columns[0].heading) // len(columns))  # a long heading widens its columns evenly
    return _Layout(columns, value, max(cell, heading))


def to_text(item: Table, width: int | None = None) -> str:
    """For the terminal: as many benchmarks side by side as fit, further ones in blocks below."""
    from rich.console import Console
    from rich.text import Text

    width = width or max(60, shutil.get_terminal_size((100, 24)).columns)
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=sys.stdout.isatty(), highlight=False)
    names = max(len(label) for label in item.grid)
    blocks: list[list[_Layout]] = []
    used = width
    for columns in _groups(item.columns):
        layout = _layout(item, columns)
        if used + 1 + layout.width > width:
            blocks.append([])
            used = names
        blocks[-1].append(layout)
        used += 1 + layout.width
    lines = [Text(item.model, style="bold")]
    for block in blocks:
        lines += ["", *_block(item, block, names)]
    lines.append("")
    for line in lines:
        console.print(line, soft_wrap=True)
    for line in [LEGEND.format(best=_BEST), *item.footer]:
        # A command stays on one line, or it cannot be copied.
        console.print(Text(line, style="dim"), soft_wrap=line.startswith("  "))
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


def _block(item: Table, block: list[_Layout], names: int) -> list[Any]:
    """Lines of one block: headings over their columns, budgets, then the methods."""
    from rich.text import Text

    def spread(texts: Sequence[str], rule: str = " ") -> str:
        return "".join(
            " " * (_GAP + 1) + text.center(layout.width - _GAP, rule)
            for text, layout in zip(texts, block, strict=True)
        )

    lines: list[Any] = [
        Text(" " * names + spread([layout.columns[0].heading for layout in block]), style="bold"),
        Text(" " * names + spread(["─" * (layout.width - _GAP) for layout in block])),
    ]
    budgets = Text("method".ljust(names), style="bold")
    for layout in block:
        budgets.append(" ")
        for column in layout.columns:
            text = str(column.budget or "full").rjust(layout.value)
            budgets.append(" " * _GAP + text.ljust(layout.cell))
    lines.append(budgets)
    previous = None
    for label, row in item.grid.items():
        family = _family(label)[0]
        if previous is not None and family != previous:
            lines.append("")
        previous = family
        first, second = Text(label.ljust(names)), Text(" " * names)
        for layout in block:
            first.append(" ")
            second.append(" ")
            if _is_full(label):
                value = _parts(label, layout.columns[0], row[layout.columns[0]])[0]
                first.append(" " * _GAP + value.center(layout.width - _GAP))
                continue
            for column in layout.columns:
                value, delta, interval = _parts(label, column, row[column])
                text = f"{value.rjust(layout.value)} {delta}".ljust(layout.cell)
                first.append(" " * _GAP)
                first.append(text, style="bold green" if row[column].best else "")
                second.append(" " * _GAP + interval.ljust(layout.cell), style="dim")
        lines.append(first)
        if second.plain.strip():
            lines.append(second)
    return lines


def to_markdown(item: Table) -> str:
    """One markdown table per benchmark and metric side by side in one row of headings."""

    def cell(label: str, column: Column) -> str:
        value, delta, interval = _parts(label, column, item.grid[label][column])
        best = item.grid[label][column].best
        shown = " ".join(
            [f"**{value}**" if best else value, delta.replace(_BEST, "").replace("*", "\\*")]
        ).strip()
        return f"{shown}<br>{interval}" if interval else shown

    heads = [f"{_escape(c.heading)} {c.budget or 'full'}" for c in item.columns]
    lines = [
        f"### {_escape(item.model)}",
        "",
        f"| method | {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(heads)}",
    ]
    for label in item.grid:
        lines.append(f"| {_escape(label)} | {' | '.join(cell(label, c) for c in item.columns)} |")
    lines += ["", LEGEND.replace("*", "\\*").format(best="**bold**"), ""]
    fenced = False
    for line in item.footer:
        if line.startswith("  ") and not fenced:
            lines.append("```")
            fenced = True
        lines.append(line.strip() if fenced else f"- {_escape(line)}")
    if fenced:
        lines.append("```")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def to_csv(tables: Sequence[Table]) -> str:
    """Long form of what the table shows: one row per cell of the table, holes included, values unscaled."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            "model",
            "method",
            "benchmark",
            "metric",
            "budget",
            "value",
            "delta",
            "ci_low",
            "ci_high",
            "best",
            "n",
        ]
        + ["kept_mean", "kept_min", "kept_max"]
    )
    for item in tables:
        for label, row in item.grid.items():
            seen = set()
            for column, value in row.items():
                if _is_full(label) and (column.benchmark, column.metric) in seen:
                    continue  # one value for all budgets
                seen.add((column.benchmark, column.metric))
                gap, entry = value.gap, value.entry
                known = value.value is not None and math.isfinite(value.value)
                numbers = [gap.delta, gap.low, gap.high] if gap is not None else [None] * 3
                kept = entry.kept if entry is not None and entry.kept else {}
                writer.writerow(
                    [
                        item.model,
                        label,
                        column.benchmark,
                        column.metric,
                        "" if _is_full(label) else column.budget,
                    ]
                    + [value.value if known else ""]
                    + ["" if number is None or not math.isfinite(number) else number for number in numbers]
                    + [int(value.best), entry.scores.n if entry and entry.scores else 0]
                    + [kept.get("mean", ""), kept.get("min", ""), kept.get("max", "")]
                )
    return out.getvalue()
