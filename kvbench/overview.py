"""What `kvbench plan` and `kvbench list` print.  No torch, no benchmark data."""

from __future__ import annotations

import sys
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from kvbench import compose, paths, plan, store
from kvbench.methods import registry


def _console() -> Console:
    # A pipe has no width; rich would assume 80 columns and fold the rows.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def print_plan(overrides: list[str], multirun: bool, list_cells: bool) -> None:
    """One row per job: cells, samples, and how many answers the store has, lacks or failed to get."""
    jobs = plan.jobs(overrides, multirun)
    table = Table(title=f"store {jobs[0].config['store']}", title_justify="left")
    table.add_column("job")
    for column in ("cells", "samples", "answers", "done", "missing", "failed"):
        table.add_column(column, justify="right")
    totals = [0, 0, 0, 0]
    unknown = False
    for job in jobs:
        responses = store.load_folder(job.folder)
        for sentence in responses.damaged:
            print(f"kvbench: {sentence}", file=sys.stderr)
        indices = job.indices(responses)
        if indices is None and job.limit is not None:
            indices = [index for index in range(job.limit) if job.owns(index)]
        wanted = set(indices) if indices is not None else None
        done = failed = 0
        for cell in job.cells:
            answered = store.done(cell, responses, job.config["trace"])
            errors = responses.failed(cell.digest).keys()
            done += len(answered if wanted is None else answered & wanted)
            failed += len(errors if wanted is None else errors & wanted)
        if wanted is None:
            unknown = True
            table.add_row(job.title, str(len(job.cells)), "all", "?", str(done), "?", str(failed))
            continue
        answers = len(job.cells) * len(wanted)
        counts = (answers, done, answers - done, failed)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        table.add_row(job.title, str(len(job.cells)), str(len(wanted)), *map(str, counts))
    if len(jobs) > 1:
        table.add_section()
        mark = "+ ?" if unknown else ""
        table.add_row(
            "total", str(sum(len(job.cells) for job in jobs)), "", f"{totals[0]}{mark}", *map(str, totals[1:])
        )
    console = _console()
    console.print(table)
    if list_cells:
        for job in jobs:
            console.print(f"\n{job.title}  ({job.folder})")
            for cell in job.cells:
                budget = (
                    ""
                    if cell.budget is None
                    else f"budget={cell.budget} window={cell.config['method']['window']}"
                )
                console.print(f"  {cell.digest}  {cell.method:<20} {budget}")


def print_names(kind: str, heading: bool) -> None:
    """The names of one kind, a line each."""
    console = _console()
    if heading:
        console.print(f"[bold]{kind}[/bold]")
    {"methods": _print_methods}.get(kind, _print_group)(console, kind)
    if heading:
        console.print()


def _print_methods(console: Console, _: str) -> None:
    console.print(
        "fullkv, or CAPACITY, or CAPACITY+SCORE: any score under any capacity; window is method.window.\n"
    )
    for kind in ("capacity", "score"):
        named = _published() if kind == "capacity" else {}
        for name in registry.names(kind):
            line, source = registry.describe(kind, name)
            alias = f" = {', '.join(named[name])}" if named.get(name) and named[name] != [name] else ""
            console.print(f"{kind} {name}{alias}: {line}  [{source}]", markup=False)
            for option in registry.options(kind, name):
                allowed = f" ({option.allowed})" if option.allowed else ""
                text = f"    method.{kind}.{option.name}={_shown(option.default)}  {option.type}{allowed}"
                text += f"  {option.help}"
                console.print(text, markup=False)


def _published() -> dict[str, list[str]]:
    """Capacity -> the method files that name it."""
    named: dict[str, list[str]] = {}
    for path in sorted((paths.conf_dir() / "method").glob("*.yaml")):
        for entry in yaml.safe_load(path.read_text("utf-8")).get("defaults", []):
            if isinstance(entry, dict) and "/capacity@capacity" in entry:
                named.setdefault(entry["/capacity@capacity"], []).append(path.stem)
    return named


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _print_group(console: Console, kind: str) -> None:
    group = kind.removesuffix("s")
    folder = paths.conf_dir() / group
    for name in compose.choices(group):
        path = folder / f"{name}.yaml"
        text = path.read_text("utf-8") if path.exists() else ""
        comments = [
            line[1:].strip() for line in text.splitlines() if line.startswith("#") and "@package" not in line
        ]
        console.print(f"{name:<16} {comments[0] if comments else ''}", markup=False)
