"""A Hydra sweeper that knows two kinds of axes.

Values of ``model``, ``benchmark``, ``prompt``, ``seed`` and ``shard`` become one Hydra job each.
``method``, ``budget`` and every ``method.OPTION`` are axes of the cells *inside* a job, which share the
prefill of each sample: they travel as strings in the config field ``axes`` and are expanded by
``kvbench.planning.plan``.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from kvbench.planning import axes
from kvbench.running.slurm import SlurmLauncher


class CellSweeper(Sweeper):
    """Splits the axes and hands one list of overrides per job to whatever launcher is configured."""

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[JobReturn]:

        jobs = axes.split_jobs(arguments, self.params, self.config.shards, self.config.shard)
        # Launchers that run jobs at once are not held back: there each job stops at its own first failure.
        one_by_one = self.config.hydra.launcher._target_.endswith(".BasicLauncher")
        if not (self.config.fail_fast and one_by_one):
            return list(self.launcher.launch(jobs, initial_job_idx=0))
        returns: list[JobReturn] = []
        for number, job in enumerate(jobs):
            returns += self.launcher.launch([job], initial_job_idx=number)
            outcome = returns[-1]._return_value
            if isinstance(outcome, Exception) or outcome.failed:
                break
        return returns


# Hydra instantiates only plugins that say they live in its plugin namespace.  A package there would be
# imported by every Hydra application of the environment, so only this name is put there, when `register` is
# called.
NAMESPACE, NAME = "hydra_plugins", "kvbench"
CellSweeper.__module__ = SlurmLauncher.__module__ = f"{NAMESPACE}.{NAME}"


def register() -> None:
    """Make ``hydra/sweeper=kvbench`` and ``hydra/launcher=kvbench_slurm`` known to Hydra in this process."""
    plugins = Plugins.instance()
    try:
        namespace = importlib.import_module(NAMESPACE)
    except ImportError:  # no Hydra plugin is installed
        namespace = sys.modules.setdefault(NAMESPACE, types.ModuleType(NAMESPACE))
    sys.modules[f"{NAMESPACE}.{NAME}"] = sys.modules[__name__]
    setattr(namespace, NAME, sys.modules[__name__])
    plugins.register(CellSweeper)
    plugins.register(SlurmLauncher)
