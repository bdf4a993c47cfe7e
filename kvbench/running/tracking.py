"""Results to Weights & Biases, beside the store and never in its way.

``tracking=wandb`` logs every job as one run of the group named after the experiment, or else the store: the
resolved config, each cell's metrics with 95 % intervals, a results table, a few samples with pictures, plots
of its traces, and the answers as an artifact. A job keeps its run id in STORE/MODEL/BENCHMARK/tracking.json,
so a resumed job continues its run. Whatever wandb raises is said once; from then on the job goes on without
it.
"""

from __future__ import annotations

import json
import math
import secrets
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvbench import store
from kvbench.errors import UserError
from kvbench.planning.plan import Job
from kvbench.store.files import pretty
from kvbench.support import masking

NAMES = ("none", "wandb")
MODES = ("online", "offline", "disabled")


class Tracker:
    """A job's run; ``start`` before the job, ``finish`` after it. Neither raises for what wandb does."""

    def __init__(self, job: Job, say: Callable[[str], None]) -> None:
        self.job, self.say = job, say
        self.settings = check(job.config.get("tracking") or {"name": "none"})
        self.run: Any = None

    def start(self) -> None:
        if self.settings["name"] != "none" and self.settings["mode"] != "disabled":
            self._try(self._start)

    def finish(self, outcome: Any) -> None:
        """``outcome``: of ``kvbench.running.run.run_job``; None after an error."""
        run, self.run = self.run, None
        if run is None:
            return
        logged = outcome is None or self._try(lambda: self._log(run, outcome))
        whole = logged and outcome is not None and not outcome.missing
        self._try(lambda: run.finish(exit_code=0 if whole else 1), quiet=not logged)

    def _try(self, step: Callable[[], None], quiet: bool = False) -> bool:
        """Whether the step was done; why not is said once."""
        try:
            step()
            return True
        except Exception as error:  # whatever it is: tracking must not cost a run
            if not quiet:
                why = f"{type(error).__name__}: {error}"
                self.say(f"tracking=wandb is off for the rest of {self.job.title}: {why}")
            self.run = None
            return False

    def _start(self) -> None:
        import wandb

        settings, config = self.settings, self.job.config
        root, mode = Path(config["store"]), settings["mode"]
        server = wandb.setup().settings.base_url if mode == "online" else ""
        if server and not reachable(server):
            mode = "offline"
        self.run = wandb.init(
            id=run_id(self.job),
            resume="allow" if mode == "online" else None,  # offline, the id alone joins runs
            project=settings["project"],
            entity=settings["entity"],
            group=settings["group"] or root.name,
            name=self.job.title,
            job_type="run",
            dir=str(root),
            mode=mode,
            config=masking.tree({**_shown(config), "cells": _cells(self.job)}),
            # Neither the terminal nor the machine's name is wandb's business.
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                init_timeout=30,
                # A server that goes away while the job runs: seconds at the end, not minutes.
                x_graphql_retry_max=2,
                x_graphql_timeout_seconds=5,
                x_file_stream_retry_max=2,
                x_file_stream_timeout_seconds=5,
                x_file_transfer_retry_max=2,
                x_file_transfer_timeout_seconds=30,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
            ),
        )
        if mode != settings["mode"]:
            where = Path(self.run.dir).parent
            self.say(f"{server} cannot be reached: logged offline; send it later with `wandb sync {where}`.")

    def _log(self, run: Any, outcome: Any) -> None:
        import wandb

        rows = results(self.job, self.say)
        logged: dict[str, Any] = {
            f"answers/{key}": getattr(outcome, key) for key in ("done", "new", "failed")
        }
        for row in rows:
            name = metric_name(row)
            for part in ("value", "value_low", "value_high", "delta", "ci_low", "ci_high", "kept_mean"):
                if row[part] is not None and math.isfinite(row[part]):
                    logged[f"{name}/{part}"] = row[part]
        if rows:
            columns = list(rows[0])
            logged["results"] = wandb.Table(columns, [[row[key] for key in columns] for row in rows])
        logged["samples"] = self._samples(wandb)
        if self.job.config["trace"]:
            for title, picture in trace_figures(self.job):
                logged[f"traces/{title}"] = wandb.Image(picture)
        run.log(logged)
        artifact = wandb.Artifact(f"answers-{run.id}", type="answers")
        for path in (
            self.job.journal,
            *(self.job.folder / "cells" / f"{c.digest}.json" for c in self.job.cells),
        ):
            artifact.add_file(str(path), name=path.relative_to(self.job.folder).as_posix())
        run.log_artifact(artifact)

    def _samples(self, wandb: Any) -> Any:
        """Question, picture and every cell's answer of the first samples."""
        from kvbench.running import run

        answers = store.load_folder(self.job.folder).answers
        labels = [f"{cell.method} {cell.budget or ''}".strip() for cell in self.job.cells]
        table = wandb.Table(["index", "question", "picture", *labels])
        count = self.settings["images"]
        indices = (self.job.indices() or [])[:count]
        for sample in run.load_benchmark(self.job.config["benchmark"]).at(indices) if indices else []:
            pictures = sample.images()
            given = [answers[cell.digest].get(sample.index, {}).get("text") for cell in self.job.cells]
            picture = wandb.Image(pictures[0]) if pictures and hasattr(pictures[0], "convert") else None
            table.add_data(sample.index, sample.text, picture, *given)
        return table


def _shown(config: dict[str, Any]) -> dict[str, Any]:
    """What of a job's config is logged: not where jobs run, which may hold secrets."""
    return {key: value for key, value in config.items() if key not in ("axes", "launcher")}


def check(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, or a UserError for a name, mode or number that does not exist."""
    if settings["name"] not in NAMES:
        raise UserError(f"tracking.name must be one of {', '.join(NAMES)}, not {settings['name']!r}.")
    if settings["name"] == "wandb":
        if settings["mode"] not in MODES:
            raise UserError(f"tracking.mode must be one of {', '.join(MODES)}, not {settings['mode']!r}.")
        if not isinstance(settings["images"], int) or settings["images"] < 0:
            raise UserError(f"tracking.images must be a whole number from 0, not {settings['images']!r}.")
    return settings


def metric_name(row: dict[str, Any]) -> str:
    """What a tidy row is logged as: ``snapkv+bacon/64/anls``."""
    return "/".join(str(row[key]) for key in ("method", "setting", "budget", "metric") if row[key])


def reachable(url: str, seconds: float = 3.0) -> bool:
    """Whether something listens where a URL points: wandb itself tries for minutes."""
    parts = urllib.parse.urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    if urllib.request.getproxies().get(parts.scheme) and not urllib.request.proxy_bypass(
        parts.hostname or ""
    ):
        return True  # the proxy's business
    try:
        socket.create_connection((parts.hostname or "", port), seconds).close()
        return True
    except OSError:
        return False


def run_id(job: Job) -> str:
    """The job's run id: the stored one, or a new one that is stored."""
    path = job.folder / "tracking.json"
    key = f"prompt={job.config['prompt']} seed={job.config['seed']} journal={job.journal.name}"
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if key not in known:
        known[key] = secrets.token_hex(6)
        store.write_atomic(path, pretty(known))
    return known[key]


def _cells(job: Job) -> dict[str, Any]:
    return {cell.digest: {"method": cell.config["method"], "budget": cell.budget} for cell in job.cells}


def trace_figures(job: Job) -> list[tuple[str, Any]]:
    """(name, picture) of the figures that the job's traces allow."""
    import io

    from PIL import Image

    from kvbench.analysis import drift
    from kvbench.analysis.figures import traces
    from kvbench.analysis.figures.style import style

    cell, root = job.cells[0], Path(job.config["store"])
    known = drift.load(root)
    mine = known.samples[
        (known.samples["model"] == cell.model) & (known.samples["benchmark"] == cell.benchmark)
    ]
    found = []
    with style():
        frame = store.load_traces(root, cell.model, cell.benchmark)
        for title, figure in traces.trace_figures(mine, known.thresholds, frame):
            drawn = io.BytesIO()
            figure.savefig(drawn, format="png", dpi=120)
            found.append((title, Image.open(drawn)))
    return found


def results(job: Job, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Tidy rows of the job's cells with the interval of each value; cells that are not complete have none."""
    from kvbench.analysis.results import entries, mean, rows
    from kvbench.analysis.scoring import score_store

    root = Path(job.config["store"])
    for warning in score_store(root, job.folder):
        say(warning)
    mine = {cell.digest for cell in job.cells}
    found = entries(root)
    by_digest = {entry.cell.digest: entry for entry in found}
    result = []
    for row in rows(found):
        if row["digest"] in mine:
            found_mean = mean(by_digest[row["digest"]], row["metric"])
            ends = {"value_low": found_mean.low, "value_high": found_mean.high}
            result.append({**row, **{key: None if math.isnan(end) else end for key, end in ends.items()}})
    return result
