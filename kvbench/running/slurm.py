"""A Hydra launcher that runs the jobs of a sweep as one Slurm array, through submitit.

A worker gets the overrides of its job and works everything else out again.  When Slurm sends the preemption
signal, submitit puts the job back into the queue and it continues from its journal.  How a job ended is read
from the store: without accounting Slurm cannot tell, and the journal is what counts in any case.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf

from kvbench.errors import UserError
from kvbench.support.words import counted

POLL = 5.0  # seconds between two looks at the queue


@dataclass(frozen=True)
class Work:
    """What travels to a worker: plain values, found again by the name of this module."""

    shared: list[str]
    command: list[str]

    def __call__(self, overrides: list[str]) -> str:
        from kvbench.running import launch

        return launch.work(overrides, self.shared, self.command).sentence()

    def checkpoint(self, overrides: list[str]) -> Any:
        """The same work again; its journal knows where it stopped."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, overrides)


class SlurmLauncher(Launcher):
    """``hydra/launcher=kvbench_slurm``; its settings are the config group ``launcher``."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.config = config
        self.command = list(task_function.keywords["command"])

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        from kvbench.planning import plan
        from kvbench.running import run as generation

        settings = OmegaConf.to_container(self.config.launcher, resolve=True)
        shared = list(self.config.hydra.overrides.hydra)
        jobs = [plan.job(list(overrides), shared) for overrides in job_overrides]
        before = generation.all_stored(jobs)
        left = [
            [word for word in overrides if not word.lstrip("+").startswith("launcher.")]  # may hold secrets
            for overrides, outcome in zip(job_overrides, before, strict=True)
            if outcome is None or outcome.missing
        ]
        if left:
            folder = Path(self.config.store) / "slurm"
            executor = _executor(settings, folder)
            array = _submit(executor, Work(shared, self.command), left)
            name = ",".join(dict.fromkeys(str(job.job_id).partition("_")[0] for job in array))
            print(
                f"Slurm job {name}: {counted(len(array), 'job')} in the array, logs in {folder}",
                file=sys.stderr,
            )
            if settings["wait"]:
                _wait(array, name, settings["cluster"])
        after = zip(jobs, generation.all_stored(jobs) if left else before, strict=True)
        return [_returned(outcome or generation.unknown(job)) for job, outcome in after]


def _executor(settings: dict[str, Any], folder: Path) -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError(
            'launcher=slurm needs submitit: pip install "kvbench[slurm]", or use another launcher.'
        ) from None
    cluster = settings["cluster"]
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise UserError(
            "Slurm is not installed here (there is no sbatch): run this on a login node of the cluster, or "
            "use launcher=basic or launcher=joblib."
        )
    executor = submitit.AutoExecutor(
        folder=folder,
        cluster=cluster,
        slurm_max_num_timeout=settings["requeues"],
        slurm_python=shlex.join([*settings["prefix"], settings["python"] or sys.executable]),
    )
    slurm = {
        "slurm_partition": settings["partition"],
        "slurm_account": settings["account"],
        "slurm_qos": settings["qos"],
        "slurm_gpus_per_node": settings["gpus"],
        "slurm_array_parallelism": settings["parallel"],
        "slurm_signal_delay_s": settings["notice"],
        "slurm_setup": settings["setup"],
        "slurm_additional_parameters": {"requeue": True, **settings["extra"]},
    }
    executor.update_parameters(
        name="kvbench",
        timeout_min=settings["minutes"],
        cpus_per_task=settings["cpus"],
        **({"mem_gb": settings["memory"]} if settings["memory"] else {}),
        **{key: value for key, value in slurm.items() if value is not None},
    )
    return executor


def _submit(executor: Any, work: Work, left: list[list[str]]) -> list[Any]:
    """The jobs, in as many arrays as the cluster's limit asks for. Raises UserError where Slurm refuses."""
    from submitit.core.utils import FailedJobError

    most = _largest_array() or len(left)
    try:
        parts = [left[start : start + most] for start in range(0, len(left), most)]
        return [job for part in parts for job in executor.map_array(work, part)]
    except FailedJobError as error:
        why = " ".join(str(error).split()).removeprefix("sbatch: error: ")
        raise UserError(
            f"Slurm did not take the jobs ({why}): correct launcher.partition or launcher.account, "
            "or use launcher=basic or launcher=joblib."
        ) from error


def _largest_array() -> int | None:
    """Jobs that Slurm takes in one array; None: not known. MaxArraySize is the first that it refuses."""
    if shutil.which("scontrol") is None:
        return None
    told = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True).stdout
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", told, re.MULTILINE)
    return max(1, int(found[1]) - 1) if found else None


def _wait(array: list[Any], name: str, cluster: str) -> None:
    """Until no job of the array is left in the queue: requeued ones come back."""
    if cluster != "slurm":
        for job in array:
            job.wait()
        return
    while True:
        asked = subprocess.run(
            ["squeue", "--noheader", f"--jobs={name}", "--format=%i"], capture_output=True, text=True
        )
        gone = asked.returncode != 0 and "Invalid job id" in asked.stderr
        if gone or (asked.returncode == 0 and not asked.stdout.strip()):
            return
        time.sleep(POLL)


def _returned(outcome: Any) -> JobReturn:
    print(outcome.sentence(), flush=True)
    returned = JobReturn()
    returned.status = JobStatus.COMPLETED
    returned.return_value = outcome
    return returned
