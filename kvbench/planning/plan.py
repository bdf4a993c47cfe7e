"""From overrides to jobs and their cells, without a model.

A *job* is a (model, benchmark, prompt, seed, shard): one pass over the samples.  A *cell* is a method with
its options and a budget inside a job.  ``jobs`` is what `kvbench plan` prints and what `kvbench run` checks
before it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hydra.types import RunMode

from kvbench import methods, store
from kvbench.errors import UserError
from kvbench.identity import revisions
from kvbench.methods import version
from kvbench.planning import axes, compose, config, specs
from kvbench.support.contents import own_head_scores


@dataclass(frozen=True)
class Job:
    """One pass over a benchmark: its resolved config and its distinct cells."""

    config: dict[str, Any]
    cells: list[store.Cell]
    # By digest, the method of each cell as it is built: a cell's own config has digests in place of files.
    specs: dict[str, dict[str, Any]]

    @property
    def title(self) -> str:
        name = f"{self.config['model']['name']} / {self.config['benchmark']['name']}"
        if self.config["shards"] > 1:
            name += f" shard {self.config['shard']} of {self.config['shards']}"
        for key, usual in (("seed", 0), ("prompt", "default")):
            if self.config[key] != usual:
                name += f" {key} {self.config[key]}"
        return name

    @property
    def folder(self) -> Path:
        return self.cells[0].folder

    @property
    def journal(self) -> Path:
        return store.journal_path(self.folder, self.config["shard"], self.config["shards"])

    @property
    def limit(self) -> int | None:
        """Samples asked for: ``limit``, else the benchmark's own default; None is all of them."""
        limit = self.config["limit"]
        return limit if limit is not None else self.config["benchmark"].get("default_limit")

    @property
    def group(self) -> tuple[int, str]:
        """Seed and prompt."""
        return self.config["seed"], self.config["prompt"]

    def own(self, order: Sequence[int]) -> list[int]:
        """This job's share, rising, of the samples that its limit takes from ``order``.

        Shards own by place in the order: a larger limit adds samples to a shard and takes none away.
        """
        return sorted(order[: self.limit][self.config["shard"] :: self.config["shards"]])

    def indices(self) -> list[int] | None:
        """Sample indices of this job, as earlier sessions know them; None when the data must be asked."""
        order = store.order(self.folder, self.cells[0].config["benchmark"])
        return None if order is None else self.own(order)


@compose.sentences()
def jobs(overrides: list[str], multirun: bool = False) -> list[Job]:
    """Every job that ``kvbench run`` with these overrides would do, all values checked.

    ``overrides`` is the command line; several values need ``multirun`` or an experiment that sweeps.
    """
    compose.plug(overrides)
    with compose.session():
        lines = axes.for_hydra(overrides)
        master = compose.compose(lines, multirun=True)
        if not compose.OmegaConf.is_config(master.hydra.sweeper):
            raise UserError("hydra.sweeper is no value to set: write lists of values with -m instead.")
        # An experiment that lists axes is a sweep, whether or not it says so.
        sweeping = multirun or master.hydra.mode == RunMode.MULTIRUN or bool(master.hydra.sweeper.params)
        if not sweeping:
            for override in compose.parse(overrides):
                if override.is_sweep_override():
                    raise UserError(f"{override.input_line} has several values: add -m to run them all.")
        shared = list(master.hydra.overrides.hydra)
        params = compose.plain(master.hydra.sweeper.params, resolve=True)
        config.check_whole("shards", master.shards, 1, most=config.MOST_SHARDS)
        lines = axes.split_jobs(list(master.hydra.overrides.task), params, master.shards, master.shard)
        return [job(line, shared) for line in lines]


def excluded(model: str, method: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern MODEL/METHOD of ``exclude`` leaves this method out."""
    return any(fnmatch(f"{model}/{method}", pattern) for pattern in patterns)


@compose.sentences()
def job(overrides: list[str], shared: list[str]) -> Job:
    """The job of one list of overrides; ``shared`` are Hydra's own overrides, as ``hydra.searchpath``."""
    compose.plug(overrides)
    composed = compose.compose(shared + overrides)
    raw = compose.plain(composed, resolve=False)
    del raw["hydra"]
    spanned = specs.spanned(raw, shared + overrides)
    raw["method"] = raw["refresh"] = {}
    resolved = compose.plain(compose.OmegaConf.create(raw), resolve=True)
    resolved["shard"] = resolved["shard"] or 0
    if resolved["tracking"].get("name") == "wandb":
        # Runs of one experiment stand together, wherever their store is.
        resolved["tracking"]["group"] = resolved["tracking"]["group"] or _experiment(composed)
    config.check_runtime(resolved)
    folder = store.group_folder(
        Path(resolved["store"]), resolved["model"]["name"], resolved["benchmark"]["name"]
    )
    cells: dict[str, store.Cell] = {}
    chosen: dict[str, dict[str, Any]] = {}
    model, benchmark = revisions.of_folders(own_head_scores(resolved["model"]), resolved["benchmark"])
    benchmark = {**benchmark, "prompt": resolved["prompt"]}
    if resolved["prompt"] != "default":
        benchmark["wording"] = benchmark["prompts"][resolved["prompt"]]
    for spec, budget in spanned:
        if excluded(resolved["model"]["name"], spec["name"], resolved["exclude"]):
            continue
        method = specs.seeded(specs.finish(spec, raw), resolved["seed"])
        whole = config.cell_budget(method, budget)
        if "refresh" in method:
            methods.build(method, whole)  # whether the policy goes with capacity, window and budget
        asked = (resolved["seed"], resolved["prompt"])
        identity = config.identity(model, benchmark, method, whole, *asked, version.of(method))
        digest = config.digest(identity)
        cells.setdefault(digest, store.Cell.from_config(digest, identity, folder))
        chosen.setdefault(digest, method)
    if not cells:
        raise UserError(
            f"exclude leaves no method for {resolved['model']['name']}: name others, or set exclude=[]."
        )
    return Job(
        config={**resolved, "model": model, "benchmark": benchmark}, cells=list(cells.values()), specs=chosen
    )


def seed_notice(found: Iterable[Job]) -> str | None:
    """What to say of jobs whose seed reaches nothing; None where a method draws, or all seeds are 0."""
    seeds = sorted({job.config["seed"] for job in found} - {0})
    if not seeds or any(specs.draws(spec) for job in found for spec in job.specs.values()):
        return None
    return (
        f"seed={','.join(map(str, seeds))} reaches nothing: no method here draws anything, so the answers "
        "are those of seed=0, in cells of their own."
    )


def _experiment(composed: Any) -> str | None:
    """The experiment that was chosen, if any."""
    return composed.hydra.runtime.choices.get("experiment")
