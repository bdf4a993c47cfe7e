"""What `kvbench plan` and `kvbench list` print.  No torch, no benchmark data."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from kvbench import paths, store
from kvbench.benchmarks.loading import known_size
from kvbench.errors import UserError
from kvbench.methods import registry
from kvbench.planning import compose, plan, sizes
from kvbench.setup import doctor
from kvbench.store import earlier
from kvbench.support.words import duration


def _console() -> Console:
    # A pipe has no width; rich would assume 80 columns and fold the rows.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def print_plan(overrides: list[str], multirun: bool, list_cells: bool) -> None:
    """One row per job: cells, samples, and how many answers the store has, lacks or failed to get."""
    jobs = plan.jobs(overrides, multirun)
    if jobs[0].config["observe"]:
        from kvbench.commands import observed

        _console().print(observed.table(jobs))
        return
    table = Table(title=f"store {jobs[0].config['store']}", title_justify="left")
    table.add_column("job")
    for column in ("cells", "samples", "answers", "done", "missing", "failed"):
        table.add_column(column, justify="right")
    read = functools.lru_cache(maxsize=1)(store.load_folder)  # the shards of a benchmark stand together
    devices: set[str] = set()
    counted: list[_Counts] = []
    for job in jobs:
        responses = read(job.folder)
        devices |= {session["device"] for session in responses.sessions.values() if session["device"]}
        for sentence in responses.damaged:
            print(f"kvbench: {sentence}", file=sys.stderr)
        counted.append(_counts(job, responses))
        table.add_row(job.title, str(len(job.cells)), *counted[-1].shown())
    unknown = any(counts.samples is None for counts in counted)
    if len(jobs) > 1:
        table.add_section()
        answers, *others = (sum(counts.known[i] for counts in counted) for i in range(4))
        cells = sum(len(job.cells) for job in jobs)
        table.add_row("total", str(cells), "", f"{answers}{'+ ?' * unknown}", *map(str, others))
    console = _console()
    console.print(table)
    missing = [counts.known[2] for counts in counted]
    console.print(_estimate(jobs, missing, sorted(devices)), markup=False)
    if any(counts.at_most for counts in counted):
        console.print("samples are at most as many: how many the data hold is known once they are here.")
    unfinished = [job for job, count in zip(jobs, missing, strict=True) if count or unknown]
    lacking = doctor.lacking((job.config["model"], job.config["benchmark"]) for job in unfinished)
    headless = {doctor.headless(job.config["model"], job.specs.values()): None for job in unfinished}
    for sentence in [*_left_out(jobs), *_old(jobs), *filter(None, headless), *lacking]:
        console.print(sentence, markup=False, soft_wrap=True)
    for job in jobs if list_cells else ():
        _print_cells(console, job)


@dataclass(frozen=True)
class _Counts:
    """Samples of a job (None: not known), answers that it has, lacks or failed to get."""

    samples: int | None
    cells: int
    done: int
    failed: int
    at_most: bool  # whether a limit stands for a data set whose size is not known

    @property
    def known(self) -> tuple[int, int, int, int]:
        """Answers, done, missing, failed; nothing of a job whose samples are not known."""
        if self.samples is None:
            return 0, 0, 0, 0
        answers = self.cells * self.samples
        return answers, self.done, answers - self.done, self.failed

    def shown(self) -> list[str]:
        """The columns of a row."""
        if self.samples is None:
            return ["all", "?", str(self.done), "?", str(self.failed)]
        return [str(self.samples), *map(str, self.known)]


def _counts(job: plan.Job, responses: store.Responses) -> _Counts:
    indices, at_most = job.indices(), False
    if indices is None and job.limit is not None:
        size = known_size(job.config["benchmark"])
        at_most = size is None
        # As many; none is answered yet.
        indices = job.own(range(job.limit if size is None else min(job.limit, size)))
    wanted = set(indices) - responses.excluded().keys() if indices is not None else None
    done = failed = 0
    for cell in job.cells:
        answered = store.done(cell, responses, job.config["trace"])
        errors = responses.failed(cell.digest).keys()
        done += len(answered if wanted is None else answered & wanted)
        failed += len(errors if wanted is None else errors & wanted)
    return _Counts(None if wanted is None else len(wanted), len(job.cells), done, failed, at_most)


def _print_cells(console: Console, job: plan.Job) -> None:
    from kvbench.analysis.results import settings

    console.print(f"\n{job.title}  ({job.folder})")
    varied = settings(job.cells)
    for cell in job.cells:
        words = [] if cell.budget is None else [f"budget={cell.budget}"]
        if cell.budget is not None and "window=" not in varied[cell.digest]:
            words.append(f"window={cell.config['method']['window']}")
        words.append(varied[cell.digest])
        console.print(f"  {cell.digest}  {cell.method:<20} {' '.join(words)}".rstrip())


def _estimate(jobs: list[plan.Job], missing: list[int], devices: list[str]) -> str:
    """Hours on one worker, from what earlier answers of the same model and benchmark took on ``devices``."""
    from kvbench.store.tally import Tally

    paces: dict[Any, float | None] = {}
    seconds, strange = 0.0, []
    for job, count in zip(jobs, missing, strict=True):
        if job.folder not in paces:
            tally = Tally(job.folder, job.cells)
            tally.update()
            paces[job.folder] = tally.pace
        if paces[job.folder] is None:
            strange.append(f"{job.config['model']['name']} / {job.config['benchmark']['name']}")
        else:
            seconds += count * paces[job.folder]
    if strange:
        names = ", ".join(dict.fromkeys(strange))
        return f"cannot estimate the time of {names} before an answer is there: run with limit=2 first"
    if not any(missing):
        return "all is answered"
    where = f"one worker ({' or '.join(devices)})" if devices else "one worker"
    text = f"about {duration(seconds)} on {where}, as earlier answers in this store took"
    on_gpu = devices and not {"cpu", "none"} & set(devices)
    return f"{text}: {seconds / 3600:.2f} GPU-hours with a GPU a worker" if on_gpu else text


def _old(jobs: list[plan.Job]) -> list[str]:
    """What the store holds of these cells from an earlier source of their methods."""
    said = earlier.notice(earlier.of_cells(cell for job in jobs for cell in job.cells))
    return [said] if said else []


def _left_out(jobs: list[plan.Job]) -> list[str]:
    """What ``exclude`` keeps out of these jobs, and how to have it."""
    models = {job.config["model"]["name"] for job in jobs}
    return [
        f"{pattern} is left out: make head scores with `kvbench calibrate heads model={model}`, name the "
        "file as model.head_scores, then add exclude=[]."
        for pattern in jobs[0].config["exclude"]
        for model in [pattern.partition("/")[0]]
        if model in models
    ]


def print_names(kind: str, heading: bool) -> None:
    """The names of one kind, a line each."""
    console = _console()
    if heading:
        console.print(f"[bold]{kind}[/bold]")
    printers = {
        "methods": _print_methods,
        "refresh": _print_refresh,
        "experiments": _print_experiments,
    }
    printers.get(kind, _print_group)(console, kind)
    if heading:
        console.print()


def _print_methods(console: Console, _: str) -> None:
    console.print(
        "fullkv, or CAPACITY, or CAPACITY+SCORE: any score under any capacity; window is method.window.\n"
    )
    named = _published()
    for name in registry.names("capacity"):
        alias = f" = {', '.join(named[name])}" if named.get(name) and named[name] != [name] else ""
        _print_entry(console, "capacity", name, "method.capacity.", alias)
    for name in registry.names("score"):
        _print_entry(console, "score", name, "method.score.")


def _print_refresh(console: Console, _: str) -> None:
    console.print(
        "While decoding, select again from the prompt: refresh=POLICY with method=snapkv or snapkv+SCORE.\n"
    )
    for name in registry.names("refresh"):
        _print_entry(console, "refresh", name, "refresh.")


def _print_entry(console: Console, kind: str, name: str, prefix: str, alias: str = "") -> None:
    """One registered name with its line and source, and its options a line each."""
    line, source = registry.describe(kind, name)
    console.print(f"{kind} {name}{alias}: {line}  [{source}]", markup=False)
    for option in registry.options(kind, name):
        if option.runtime:
            continue
        allowed = f" ({option.allowed})" if option.allowed else ""
        text = f"    {prefix}{option.name}={_shown(option.default)}  {option.type}{allowed}"
        console.print(f"{text}  {option.help}", markup=False)


def _published() -> dict[str, list[str]]:
    """Capacity -> the method files that are it with window attention as score."""
    named: dict[str, list[str]] = {}
    for path in sorted((paths.conf_dir() / "method").glob("*.yaml")):
        document = yaml.safe_load(path.read_text("utf-8"))
        given = [entry for entry in document.pop("defaults", []) if isinstance(entry, dict)]
        parts = {group: name for entry in given for group, name in entry.items()}
        if parts.get("/score@score") == "window" and document == {"name": path.stem, "window": None}:
            named.setdefault(parts["/capacity@capacity"], []).append(path.stem)
    return named


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _print_experiments(console: Console, _: str) -> None:
    """A line an experiment: cells under either profile, or prompts to observe, and what it is."""
    for path in sorted((paths.conf_dir() / "experiment").glob("*.yaml")):
        name = path.stem
        counts = ", ".join(f"{_size(name, profile)} {profile}".strip() for profile in sizes.profiles(name))
        console.print(f"{name:<19} {counts:<26} {_about('experiment', name)}", markup=False, soft_wrap=True)


def _size(experiment: str, profile: str) -> str:
    """``sizes.size``; "?" where the experiment names a method that is not there."""
    try:
        return sizes.size(experiment, profile)
    except UserError:
        return "?"


def _about(group: str, name: str) -> str:
    """The first comment of a config file."""
    path = paths.conf_dir() / group / f"{name}.yaml"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    comments = (line[1:].strip() for line in lines if line.startswith("#") and "@package" not in line)
    return next(comments, "")


def _print_group(console: Console, kind: str) -> None:
    group = kind.removesuffix("s")
    for name in compose.choices(group):
        console.print(f"{name:<16} {_about(group, name)}", markup=False)
