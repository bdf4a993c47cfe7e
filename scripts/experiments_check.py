"""Every experiment at toy size with micro data, two samples of each benchmark, to a table without a hole.

    python scripts/experiments_check.py                    # all; a line each, exit code 1 if one has a hole
    python scripts/experiments_check.py bacon_table5       # some

The whole grid of each: every model, benchmark, method, budget and option. Models of the papers are toys with
random weights and read a handful of drawn samples; the models that ship with kvbench and the sets it draws
are as they are. The figures mean nothing, that there is one in every cell does. A paper's table is also laid
beside its printed values: each must find its cell. Stores lie in runs/check; the same command continues.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from kvbench import cli
from kvbench.analysis import published
from kvbench.analysis.results import Entry, entries
from kvbench.analysis.tables import build
from kvbench.analysis.tables.show import parts
from kvbench.errors import UserError
from kvbench.observations import stored
from kvbench.paths import BUILT_IN
from kvbench.planning import compose, experiments, plan, sizes
from kvbench.rendering import MISSING
from kvbench.support.words import counted

SHORT = ["benchmark.max_new_tokens=4"]
LIMITS = {"screenspot": 6}  # a sample of each platform and kind of element; two of the others
# Ranks above the toys' head dimension.
SMALLER = {"rcr_cost": ["refresh.infinigen.rank=4,8,16"]}
TOY = ["model.weights=random", "model.size=toy", "model.dtype=float32"]
MICRO = ["benchmark.data=micro"]


class Incomplete(Exception):
    """Why an experiment has no complete table."""


def command(*words: str) -> str:
    """What a command printed; raises Incomplete where it does not end with 0."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.main(list(words))
    if code:
        lines = said.getvalue().strip().splitlines() or ["nothing said"]
        why = [line for line in lines if line.startswith("kvbench: ")] or lines
        raise Incomplete(f"{words[0]} ended with {code}: {why[-1]}")
    return said.getvalue()


def check(name: str, folder: Path, some: Sequence[str] = ()) -> str:
    """What is complete of an experiment, in words; ``some``: overrides that take a part of its grid.

    Raises Incomplete.
    """
    whole = [f"experiment={name}", *(["profile=paper"] if "paper" in sizes.profiles(name) else []), *some]
    command("plan", *whole)
    words = [*whole, *small(plan.jobs(whole), folder), *SMALLER.get(name, ()), f"store={folder / name}"]
    jobs = plan.jobs(words)
    command("run", *words)
    store = folder / name
    if jobs[0].config["observe"]:
        return observed(jobs, store)
    command("table", f"store={store}")
    found = entries(store)
    complete(jobs, found, store)
    said = counted(sum(len(job.cells) for job in jobs), "cell")
    if jobs[0].config["trace"]:
        command("analyze", "drift", f"store={store}")
        said += ", drift"
    return said if some else said + beside(found, experiments.find(name))


def small(jobs: list[plan.Job], folder: Path) -> list[str]:
    """Overrides that make toys of published models and a handful of published data."""
    model, benchmark = jobs[0].config["model"], jobs[0].config["benchmark"]
    words = [*SHORT, f"limit={LIMITS.get(benchmark['name'], 2)}"]
    toy = model["weights"] not in BUILT_IN
    words += TOY if toy else []
    need = {
        job.config["model"]["name"] for job in jobs if any("sparsemm" in cell.method for cell in job.cells)
    }
    if toy and need:
        words.append(f"model.head_scores={heads(need, folder)}")
    if "/" in str(benchmark.get("data")):  # of a hub
        words += MICRO
        words += ["benchmark.subset=full"] * ("=" not in str(benchmark["subset"]))  # N of a set with fewer
    return words


def heads(models: set[str], folder: Path) -> Path:
    """Folder with the visual-head scores of toys, one file a model."""
    where = folder / "heads"
    where.mkdir(parents=True, exist_ok=True)
    for model in sorted(models):
        out = where / f"{model}-heads.json"
        if not out.exists():
            command("calibrate", "heads", f"model={model}", *TOY, "--pictures", "6", "--out", str(out))
    return where


def observed(jobs: list[plan.Job], store: Path) -> str:
    """Raises Incomplete where a prompt has no values, or one of them is no number."""
    for job in jobs:
        if stored.missing(job, job.limit):
            raise Incomplete(f"{job.title}: {stored.missing(job, job.limit)} prompts are not observed")
        for sample in stored.in_order(stored.read(stored.path(job))):
            if empty := [key for key, value in sample.items() if value is None or value == []]:
                raise Incomplete(f"{job.title}: no value of {', '.join(empty)}")
    drawn = command("figures", f"store={store}", "--formats", "svg").strip().splitlines()[-1]
    return f"{counted(sum(job.limit for job in jobs), 'prompt')}, {drawn.partition(' of ')[0]}"


def complete(jobs: list[plan.Job], found: list[Entry], store: Path) -> None:
    """Raises Incomplete where a planned cell is not scored, or the table has a cell without a number."""
    scored = {entry.cell.digest for entry in found if entry.scores is not None}
    left = [cell for job in jobs for cell in job.cells if cell.digest not in scored]
    if left:
        raise Incomplete(f"{counted(len(left), 'planned cell')} not scored, as {left[0].method}")
    for model in dict.fromkeys(entry.cell.model for entry in found):
        table = build(found, model, store)
        shown = [parts(table, label, column)[0] for label in table.grid for column in table.columns]
        if holes := sum(text in (MISSING, "n/a") for text in shown):
            raise Incomplete(f"{model}: {holes} of {len(shown)} values missing")


def beside(found: list[Entry], experiment: experiments.Experiment) -> str:
    """How many printed values find a cell, in words. Raises Incomplete where one does not."""
    if not experiment.paper:
        return ""
    rows = published.from_answers(experiment.published())
    with mock.patch.object(published, "real", lambda cell: True):  # toys do not stand beside the papers
        pairs = published.pairs(rows, found)
    if lacking := [pair.published for pair in pairs if pair.measured is None]:
        row = lacking[0]
        raise Incomplete(
            f"{len(lacking)} of {len(rows)} printed values find no cell, as {row.method} {row.setting} of "
            f"{row.model} on {row.benchmark} at {row.budget}"
        )
    return f", all of {counted(len(rows), 'printed value')}"


def main(arguments: list[str]) -> int:
    """Check the named experiments, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help="default: all of conf/experiment")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/check"), help="of the stores (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    names = options.names or list(experiments.known())
    good = 0
    for name in names:
        started = time.monotonic()
        try:
            with compose.session():
                came = f"complete: {check(name, options.folder)}"
            good += 1
        except (Incomplete, UserError) as error:
            came = f"INCOMPLETE: {error}"
        print(f"{name:<22} {time.monotonic() - started:6.1f} s  {came}", flush=True)
    print(f"{good} of {len(names)} complete")
    return int(good < len(names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
