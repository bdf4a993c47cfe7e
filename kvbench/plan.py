"""From overrides to jobs and their cells, without a model.

A *job* is a (model, benchmark, prompt, seed, shard): one pass over the samples.  A *cell* is a method with
its options and a budget inside a job.  ``jobs`` is what `kvbench plan` prints and what `kvbench run` checks
before it starts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hydra.types import RunMode

from kvbench import compose, config, methods, revisions, store
from kvbench.contents import own_head_scores
from kvbench.errors import UserError
from kvbench.methods import registry, version

JOB_AXES = ("model", "benchmark", "prompt", "seed", "shard")

# Composed methods and refreshes of this process: composing one takes tens of milliseconds, and a grid has
# few of them in many cells.
_composed: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}


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


def is_cell_axis(key: str) -> bool:
    """Whether an override varies the cells inside a job."""
    return key in ("method", "refresh", "budget") or key.startswith(("method.", "refresh."))


def for_hydra(overrides: list[str]) -> list[str]:
    """Overrides as Hydra takes them: what a job alone can read is gathered into the field ``axes``.

    That is what varies its cells, and the keys of its model and benchmark: the defaults that Hydra composes
    before a sweep begins may be other ones, without those keys.
    """
    inner, others = [], []
    for override in compose.parse(overrides):
        key = override.key_or_group
        if override.is_delete():
            raise UserError(
                f"cannot read {override.input_line!r}: no key can be deleted; leave it out for its default, "
                f"or write {key}=VALUE."
            )
        if key == "axes":
            raise UserError("axes is filled by kvbench itself: write method=A,B budget=128,64 instead.")
        if key in ("method.score", "method.capacity") or override.package is not None:
            raise UserError(
                f"cannot read {override.input_line!r}: compose a method as method=CAPACITY+SCORE."
            )
        if is_cell_axis(key) and (override.is_add() or override.is_force_add()):
            raise UserError(f"cannot read {override.input_line!r}: write {key}=VALUE, without +.")
        inside = is_cell_axis(key) or key.startswith(("model.", "benchmark."))
        (inner if inside else others).append(override.input_line)
    return others + [_axes(inner)] if inner else others


def _axes(lines: list[str]) -> str:
    """The override that carries cell axes into a job's config."""
    quoted = ("'" + line.replace("\\", "\\\\").replace("'", "\\'") + "'" for line in lines)
    return f"axes=[{','.join(quoted)}]"


def split_jobs(
    arguments: list[str], params: dict[str, Any], shards: int = 1, shard: int | None = None
) -> list[list[str]]:
    """Split overrides and an experiment's ``hydra.sweeper.params`` into the overrides of each job.

    ``arguments`` win over ``params``; cell axes end up in every job's ``axes``.  ``shards`` without a
    ``shard`` are a job each.
    """
    lines = [f"{key}={value}" for key, value in params.items()]
    others: dict[str, list[str]] = {}
    cells: dict[str, str] = {}
    given = compose.parse(lines + arguments)
    inside = [compose.parse(one.value()) if one.key_or_group == "axes" else [one] for one in given]
    for override in itertools.chain.from_iterable(inside):
        key = override.key_or_group
        if is_cell_axis(key):
            cells[key] = override.input_line
        elif override.is_sweep_override():
            if key not in JOB_AXES:
                raise UserError(
                    f"{key} takes one value in a sweep: only {', '.join(JOB_AXES)}, method, refresh, budget, "
                    "method.OPTION and refresh.OPTION take several."
                )
            others[key] = [f"{key}={value}" for value in _values(override)]
        else:
            others[key] = [override.input_line]
    if shards > 1 and shard is None and "shard" not in others:
        others["shard"] = [f"shard={number}" for number in range(shards)]
    axes = [_axes(list(cells.values()))] if cells else []
    return [[*combination, *axes] for combination in itertools.product(*others.values())]


def _values(override: Any) -> list[str]:
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if not override.is_discrete_sweep():
        raise UserError(f"cannot sweep {override.input_line!r}: list the values, as in budget=128,64,32.")
    values = list(override.sweep_string_iterator())
    if not values:
        raise UserError(f"{override.input_line!r} matches nothing: see `kvbench list`.")
    return values


@compose.sentences()
def jobs(overrides: list[str], multirun: bool = False) -> list[Job]:
    """Every job that ``kvbench run`` with these overrides would do, all values checked.

    ``overrides`` is the command line; several values need ``multirun`` or an experiment that sweeps.
    """
    with compose.session():
        lines = for_hydra(overrides)
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
        lines = split_jobs(list(master.hydra.overrides.task), params, master.shards, master.shard)
        return [job(line, shared) for line in lines]


def excluded(model: str, method: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern MODEL/METHOD of ``exclude`` leaves this method out."""
    return any(fnmatch(f"{model}/{method}", pattern) for pattern in patterns)


@compose.sentences()
def job(overrides: list[str], shared: list[str]) -> Job:
    """The job of one list of overrides; ``shared`` are Hydra's own overrides, as ``hydra.searchpath``."""
    composed = compose.compose(shared + overrides)
    raw = compose.plain(composed, resolve=False)
    del raw["hydra"]
    spanned = _cell_axes(raw, shared + overrides)
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
    specs: dict[str, dict[str, Any]] = {}
    model, benchmark = revisions.of_folders(own_head_scores(resolved["model"]), resolved["benchmark"])
    benchmark = {**benchmark, "prompt": resolved["prompt"]}
    if resolved["prompt"] != "default":
        benchmark["wording"] = benchmark["prompts"][resolved["prompt"]]
    for spec, budget in spanned:
        if excluded(resolved["model"]["name"], spec["name"], resolved["exclude"]):
            continue
        method = _seeded(_finish(spec, raw), resolved["seed"])
        whole = config.cell_budget(method, budget)
        if "refresh" in method:
            methods.build(method, whole)  # whether the policy goes with capacity, window and budget
        asked = (resolved["seed"], resolved["prompt"])
        identity = config.identity(model, benchmark, method, whole, *asked, version.of(method))
        digest = config.digest(identity)
        cells.setdefault(digest, store.Cell.from_config(digest, identity, folder))
        specs.setdefault(digest, method)
    if not cells:
        raise UserError(
            f"exclude leaves no method for {resolved['model']['name']}: name others, or set exclude=[]."
        )
    return Job(
        config={**resolved, "model": model, "benchmark": benchmark}, cells=list(cells.values()), specs=specs
    )


def seed_notice(found: Iterable[Job]) -> str | None:
    """What to say of jobs whose seed reaches nothing; None where a method draws, or all seeds are 0."""
    seeds = sorted({job.config["seed"] for job in found} - {0})
    if not seeds or any(_random(spec) for job in found for spec in job.specs.values()):
        return None
    return (
        f"seed={','.join(map(str, seeds))} reaches nothing: no method here draws anything, so the answers "
        "are those of seed=0, in cells of their own."
    )


def _random(method: dict[str, Any]) -> bool:
    return method.get("score") is not None and registry.lookup("score", method["score"]["name"]).random


def _seeded(method: dict[str, Any], seed: int) -> dict[str, Any]:
    """A method that draws has the run's seed, unless its own option names one."""
    if not _random(method) or method["score"]["seed"] is not None:
        return method
    return {**method, "score": {**method["score"], "seed": seed}}


def _experiment(composed: Any) -> str | None:
    """The experiment that was chosen, if any."""
    return composed.hydra.runtime.choices.get("experiment")


def _cell_axes(raw: dict[str, Any], overrides: list[str]) -> list[tuple[dict[str, Any], Any]]:
    """Every (method spec, budget) that a job's ``axes`` span; options apply to methods that have them."""
    axes = {axis.key_or_group: _values(axis) for axis in compose.parse(raw["axes"])}
    names = axes.pop("method", [raw["method"].get("name", "fullkv")])
    policies = axes.pop("refresh", [raw["refresh"].get("name", "none")])
    budgets = [_value("budget", text) for text in axes.pop("budget", [str(raw["budget"])])]
    refreshes = [_composed_group("refresh", name, overrides) for name in map(_unquote, policies)]
    specs = []
    for name in map(_unquote, names):
        method = _composed_group("method", name, overrides)
        # What keeps everything has nothing to select again.
        for refresh in refreshes if method.get("capacity") else [{"name": "none"}]:
            specs.append({**method, "refresh": refresh})
    _check_option_axes(axes, specs)
    spanned = []
    for spec in specs:
        known = option_paths(spec)
        # Of two keys for one option the more specific one, refresh.POLICY.OPTION, counts.
        own = {known[key]: key for key in sorted(axes, key=lambda key: key.count(".")) if key in known}
        for budget in budgets:
            for texts in itertools.product(*(axes[key] for key in own.values())):
                values = {
                    path: _value(key, text) for (path, key), text in zip(own.items(), texts, strict=True)
                }
                spanned.append((_with_options(spec, values), budget))
    return spanned


def _check_option_axes(axes: dict[str, list[str]], specs: list[dict[str, Any]]) -> None:
    """Raise UserError for an option that none of the methods and policies has."""
    known = set().union(*map(option_paths, specs))
    for key in axes:
        if key in known:
            continue
        plain = key.rpartition(".")[2]
        if plain in config.RUNTIME:
            raise UserError(f"{key} changes no answer, so it is no option of a cell: write {plain}=VALUE.")
        if known:
            raise compose.unknown_key(key, sorted(known))
        raise UserError(
            f"{key} does not apply: method {specs[0]['name']} keeps everything and has no options."
        )


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _value(key: str, text: str) -> Any:
    return compose.parse([f"{key}={text}"])[0].value()


def _composed_group(group: str, name: str, overrides: list[str]) -> dict[str, Any]:
    """A method's or a refresh's composed spec, interpolations unresolved.

    It may depend on an experiment, not on the values of job axes or runtime fields, so those are left out
    of the key.
    """
    parts = (override.partition("=")[0] for override in overrides)
    apart = {*JOB_AXES, *config.RUNTIME}
    choice = f"{group}={name}"
    key = (
        choice,
        tuple(line for line, part in zip(overrides, parts, strict=True) if part.lstrip("+") not in apart),
    )
    if key not in _composed:
        spec = compose.plain(compose.compose([*overrides, choice])[group], resolve=False)
        if not spec or "name" not in spec:
            raise UserError(f"{choice} chooses nothing: set {group}=NAME, as `kvbench list` shows them.")
        _composed[key] = spec
    return _composed[key]


def option_paths(spec: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """The option keys of a method on the command line, and where each stands in the spec.

    Of the spec only the names of capacity, score and refresh matter.
    """
    if spec.get("capacity") is None:
        return {}
    paths: dict[str, tuple[str, ...]] = {"method.window": ("window",)}
    for kind in registry.KINDS:
        name = spec[kind]["name"]
        for option in registry.options(kind, name):
            if option.runtime:
                continue
            at = (kind, option.name)
            if kind == "refresh":
                paths[f"refresh.{option.name}"] = paths[f"refresh.{name}.{option.name}"] = at
            else:
                paths[f"method.{kind}.{option.name}"] = at
    return paths


def _with_options(spec: dict[str, Any], values: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    changed = {key: dict(value) if isinstance(value, dict) else value for key, value in spec.items()}
    for (*outer, name), value in values.items():
        target = changed[outer[0]] if outer else changed
        target[name] = value
    return changed


def _finish(spec: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """A spec with interpolations resolved, every option present, checked and of its declared type."""
    if "${" in repr(spec):
        spec = compose.plain(compose.OmegaConf.create({**raw, "method": spec}).method, resolve=True)
    if spec.get("capacity") is None:
        return {"name": spec["name"], "window": None, "capacity": None, "score": None}
    finished = {"name": spec["name"]}
    for kind in registry.KINDS:
        values = dict(spec[kind])
        name = values.pop("name")
        built = dataclasses.asdict(registry.make(kind, name, values))
        apart = {option.name for option in registry.options(kind, name) if option.runtime}
        finished[kind] = {"name": name, **{key: built[key] for key in built if key not in apart}}
    if finished["refresh"]["name"] == "none":
        del finished["refresh"]  # one-shot methods are spelt as if there were no re-selection
    window = spec.get("window")
    finished["window"] = _default_window(spec["score"]["name"], raw["model"]) if window is None else window
    return finished


def usual(method: str, refresh: str, overrides: list[str]) -> dict[str, Any]:
    """A method's spec with every option at its default; ``overrides`` name the model, whose window counts."""
    raw = compose.plain(compose.compose(overrides), resolve=False)
    spec = _composed_group("method", method, overrides)
    return _finish({**spec, "refresh": _composed_group("refresh", refresh, overrides)}, raw)


def _default_window(score: str, model: dict[str, Any]) -> int:
    """A score's own default comes first (ecokv: 4 queries), then the model's, then the usual 32."""
    base = registry.USUAL_WINDOW
    own = registry.lookup("score", score).default_window
    return own if own != base else model.get("window") or base
