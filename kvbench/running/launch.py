"""`kvbench run`: check everything, hand the jobs to Hydra's launcher, and sum up what they came to."""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from kvbench import store
from kvbench.errors import UserError
from kvbench.methods import plugins
from kvbench.planning import axes, compose, plan
from kvbench.running import preempt, sweeper, tracking
from kvbench.running import run as generation
from kvbench.setup import doctor, first
from kvbench.store.files import storage_error
from kvbench.support import masking
from kvbench.support.words import counted


def run(overrides: list[str], multirun: bool, command: list[str]) -> int:
    """Run every job of the overrides; exit code 0 when all is answered, 1 when something is missing."""
    command = masking.command(command)  # it travels to workers and into journals
    sweeper.register()
    with compose.session() as hydra:
        jobs = plan.jobs(overrides, multirun)
        if any([_prepared(job) for job in jobs]):
            jobs = plan.jobs(overrides, multirun)  # cells are named by what was made
        where = Path(jobs[0].config["store"])
        _check_store(where)
        if jobs[0].config["observe"]:
            return observe(jobs)
        if notice := plan.seed_notice(jobs):
            _log(notice)
        if len(jobs) > 1:  # a single job says it at once
            _say_what_lacks(jobs)
        plugins.write(where)
        store.check_versions([cell for job in jobs for cell in job.cells], where)
        with compose.sentences(), preempt.watched():
            returns = hydra.multirun(
                config_name="config",
                task_function=functools.partial(task, command=command),
                overrides=axes.for_hydra(overrides),
                with_log_configuration=False,
            )
    outcomes = [job_return._return_value for job_return in returns]
    with contextlib.suppress(OSError):
        where.rmdir()  # which fails unless nothing was stored
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for error in errors:
        if not isinstance(error, UserError):
            raise error
    for sentence in dict.fromkeys(str(error) for error in errors):
        print(f"kvbench: {masking.mask(sentence)}", file=sys.stderr)
    if errors:
        return 2
    if len(outcomes) == len(jobs) and not any(outcome.missing for outcome in outcomes):
        _log(f"all is answered: `kvbench table store={shlex.quote(str(where))}` prints the scores")
    return 1 if len(outcomes) < len(jobs) or any(outcome.missing for outcome in outcomes) else 0


def _prepared(job: plan.Job) -> bool:
    """Whether a part of a job was missing that kvbench makes for itself, and is there now."""
    made = first.language_model(job.config["model"], _log)
    return first.drawn_sets(job.config["benchmark"], _log) or made


def _say_what_lacks(jobs: list[plan.Job]) -> None:
    """Name missing data, checkpoints and programs before the first job, not when their turn comes."""

    def lacking(of: list[plan.Job]) -> list[str]:
        return doctor.lacking((job.config["model"], job.config["benchmark"]) for job in of)

    if lacking(jobs):
        known = generation.all_stored(jobs)
        unfinished = [job for job, one in zip(jobs, known, strict=True) if one is None or one.missing]
        for sentence in lacking(unfinished):
            _log(sentence)


def observe(jobs: list[plan.Job]) -> int:
    """Observe the prompts of jobs, whose cells do not matter; returns the exit code."""
    from kvbench.running import observe as observing

    with preempt.watched():
        observing.observe(jobs, _log)
    return 0


def clean(overrides: list[str], multirun: bool, yes: bool, only_earlier: bool = False) -> bool:
    """Delete what the store holds of the cells of these overrides; False when the person says no.

    Their earlier versions go too, or with ``only_earlier`` these alone.
    """
    from kvbench.store import clean as cleaning
    from kvbench.store import earlier

    asked = [cell for job in plan.jobs(overrides, multirun) for cell in job.cells]
    cells: dict[Path, set[str]] = {}
    for cell in [*earlier.of_cells(asked), *([] if only_earlier else asked)]:
        cells.setdefault(cell.folder, set()).add(cell.digest)
    if only_earlier and not cells:
        return True
    answers = sum(cleaning.count(folder, digests) for folder, digests in cells.items())
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(
                f"--clean would delete {counted(answers, 'answer')} and nobody is there to ask: add --yes."
            )
        count = sum(map(len, cells.values()))
        asked = f"delete {counted(answers, 'answer')} of {counted(count, 'cell')}? [y/N] "
        if input(asked).strip().lower() not in ("y", "yes"):
            return False
    for folder, digests in cells.items():
        cleaning.forget(folder, digests)
    return True


def task(config: Any, command: list[str]) -> generation.Outcome:
    """One Hydra job, in whatever process the launcher chose.

    The job is worked out again from its overrides: they are all that has to travel.
    """
    overrides = HydraConfig.get().overrides
    return work(list(overrides.task), list(overrides.hydra), command)


def work(overrides: list[str], shared: list[str], command: list[str]) -> generation.Outcome:
    """The job of one list of overrides; ``shared`` are Hydra's own."""
    job = plan.job(overrides, shared)
    tracker, outcome = tracking.Tracker(job, _log), None
    tracker.start()
    try:
        outcome = generation.run_job(job, command, log=_log)
    finally:
        tracker.finish(outcome)
    print(outcome.sentence(), flush=True)
    return outcome


def _log(sentence: str) -> None:
    print(masking.mask(sentence), file=sys.stderr, flush=True)


def _check_store(store: Path) -> None:
    """Fail before a model loads when the store cannot be made."""
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(store, error) from error


def calibrate(overrides: list[str], pictures: int, out: Path | None, data: Path | None = None) -> Path:
    """`kvbench calibrate heads`: read out pictures whose words have known places."""
    models = {job.config["model"]["name"]: job.config["model"] for job in plan.jobs(overrides)}
    if len(models) != 1:
        raise UserError(f"calibrate takes one model, not {', '.join(sorted(models))}: set model=NAME.")
    (model,) = models.values()
    from kvbench.calibration.heads import calibrate_heads
    from kvbench.calibration.readings import box_readings, page_readings

    out = out or Path(f"{model['name']}-heads.json")
    adapter = generation.load_model(model)
    calibrate_heads(
        adapter,
        page_readings(adapter, pictures) if data is None else box_readings(adapter, data, pictures),
        out,
        progress=lambda done: _log(f"{done} of {pictures} pictures read"),
    )
    print(f"wrote {out}: use it with model.head_scores={out}")
    return out
