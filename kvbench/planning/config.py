"""The schema behind conf/, what of it names a cell, and the checks that need no model.

Every field is either *identity* - it can change an answer, so it is part of the cell's digest - or
*runtime*: it says how much is done, where and how, so changing it continues the same cells.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Optional

from kvbench.benchmarks import catalogue, fit
from kvbench.checks import DTYPES, check_budget, check_whole, suggest
from kvbench.errors import UserError
from kvbench.paths import conf_dir
from kvbench.planning import shapes
from kvbench.store.files import canonical
from kvbench.support.contents import by_content


def _field(kind: str, **kwargs: Any) -> Any:
    return field(metadata={"kind": kind}, **kwargs)


@dataclass
class DecodeConfig:
    """How branches decode; see kvbench.engine.paths."""

    # The step as one compiled graph. In float32 the tokens are the same; in 16 bits sums are rounded in
    # another order, as they are after any change of the batch.
    compile: bool = False
    # One branch at a time, so that in 16 bits an answer does not depend on which methods run together.
    # Slower: a step of one branch costs about as much as one of many.
    invariant: bool = False


@dataclass
class RunConfig:
    """One job: a (model, benchmark, shard) with the axes of its cells; defaults here and in conf/."""

    model: dict[str, Any] = _field("identity", default_factory=dict)
    benchmark: dict[str, Any] = _field("identity", default_factory=dict)
    method: dict[str, Any] = _field("identity", default_factory=dict)
    refresh: dict[str, Any] = _field("identity", default_factory=dict)  # stored as a part of the method
    budget: int = _field("identity", default=128)  # entries per KV head, window included
    seed: int = _field("identity", default=0)
    prompt: str = _field("identity", default="default")  # variant of the benchmark's prompt

    axes: list[str] = _field(
        "runtime", default_factory=list
    )  # overrides of the cells, filled by the command line
    limit: Optional[int] = _field("runtime", default=None)  # noqa: UP045 - read by OmegaConf
    store: str = _field("runtime", default="runs/default")
    shard: Optional[int] = _field("runtime", default=None)  # noqa: UP045 - None: every one
    shards: int = _field("runtime", default=1)
    sync: float = _field("runtime", default=5.0)  # seconds of work that a power failure may cost
    # What branches that decode together may hold; None: half of the free memory.
    max_branch_bytes: Optional[int] = _field("runtime", default=None)  # noqa: UP045
    decode: DecodeConfig = _field("runtime", default_factory=DecodeConfig)
    launcher: dict[str, Any] = _field("runtime", default_factory=dict)  # conf/launcher: where jobs run
    plugins: list[str] = _field("runtime", default_factory=list)  # files that register methods of one's own
    exclude: list[str] = _field("runtime", default_factory=list)  # MODEL/METHOD patterns left out of sweeps
    tracking: dict[str, Any] = _field("runtime", default_factory=dict)  # conf/tracking: where else results go
    retries: int = _field("runtime", default=1)  # further tries of a sample that fails
    fail_fast: bool = _field("runtime", default=False)
    trace: bool = _field("runtime", default=False)  # record what re-selection did at every step and layer
    offload: bool = _field("runtime", default=False)  # re-selection reads the prompt from CPU memory
    observe: bool = _field("runtime", default=False)  # no answers: what the prompts show


RUNTIME = frozenset(
    name for name, f in RunConfig.__dataclass_fields__.items() if f.metadata.get("kind") == "runtime"
)

MOST_SAMPLES = 10_000_000
MOST_SHARDS = 10_000  # each is a job with a config of its own

# What a group holds without deciding an answer; every other key names the cell, since a needless new cell is
# safer than a mixed one.
MODEL_RUNTIME = frozenset({"window", "title", "device", "needs"})
# Null is what models of earlier stores did without the key: it names the same cells.
MODEL_LATER = frozenset({"chat"})
BENCHMARK_RUNTIME = frozenset(
    {"title", "default_limit", "metric", "scale", "metrics", "reference", "needs", "prompts"}
    | {"columns", "size_gb", "videos", "unreadable"}
)


def identity(
    model: dict[str, Any],
    benchmark: dict[str, Any],
    method: dict[str, Any],
    budget: int | None,
    seed: int,
    prompt: str,
    code: str | None = None,
) -> dict[str, Any]:
    """The resolved identity config of a cell, as it is hashed and stored: files by what they hold.

    code: version of the method's source (``kvbench.methods.version``); None, and left out, for one that keeps
    everything.
    """
    resolved = {
        "model": {
            key: value
            for key, value in model.items()
            if key not in MODEL_RUNTIME and (value is not None or key not in MODEL_LATER)
        },
        "benchmark": {key: value for key, value in benchmark.items() if key not in BENCHMARK_RUNTIME},
        "method": method,
        "budget": budget,
        "seed": seed,
        "prompt": prompt,
        **({} if code is None else {"code": code}),
    }
    return by_content(resolved)


def digest(config: dict[str, Any]) -> str:
    """Name of a cell: 16 hex digits of the SHA-256 of its canonical identity config."""
    return hashlib.sha256(canonical(config).encode("utf-8")).hexdigest()[:16]


def check_dtype(model: dict[str, Any]) -> None:
    """Raise UserError unless a model config names a dtype: one that follows the device would mix answers."""
    wanted = model.get("dtype")
    if wanted is not None and wanted not in DTYPES:
        raise UserError(f"unknown dtype {wanted!r}: set model.dtype to one of {', '.join(DTYPES)}.")


def check_runtime(config: dict[str, Any]) -> None:
    """Impossible values of the fields a job has besides its cells."""
    for group in ("model", "benchmark"):
        shapes.check(group, config[group])
    shapes.check_device(config["model"])
    check_dtype(config["model"])
    for pattern in config["exclude"]:
        if not isinstance(pattern, str) or "/" not in pattern:
            raise UserError(
                f"exclude takes patterns MODEL/METHOD, not {pattern!r}: write exclude=[embedded/sparsemm*]."
            )
    if config["limit"] is not None:
        hint = "leave it out for the benchmark's default, or"
        check_whole("limit", config["limit"], 1, hint, most=MOST_SAMPLES)
    if config["benchmark"].get("unreadable", "stop") not in ("stop", "exclude"):
        raise UserError(
            f"benchmark.unreadable is stop or exclude, not {config['benchmark']['unreadable']!r}: choose one."
        )
    if not str(config["store"] or "").strip():
        raise UserError("store is empty: name a folder for the results, store=runs/NAME.")
    check_whole("retries", config["retries"], 0)
    if config["max_branch_bytes"] is not None:
        check_whole("max_branch_bytes", config["max_branch_bytes"], 1)
    if config["decode"]["compile"] and config["decode"]["invariant"]:
        raise UserError(
            "decode.compile=true rounds by the batch's shape, decode.invariant=true has no batch: drop one."
        )
    check_whole("seed", config["seed"], 0)
    shards = check_whole("shards", config["shards"], 1, most=MOST_SHARDS)
    if not config["sync"] >= 0:
        raise UserError(f"sync must be a number of seconds of at least 0, not {config['sync']}: set sync=5.")
    shard = check_whole("shard", config["shard"], 0)
    if shard >= shards:
        raise UserError(
            f"shard={shard} does not exist with shards={shards}: use a shard from 0 to {shards - 1}."
        )
    _check_scoring(config["benchmark"])
    fit.check(config["benchmark"])
    prompts = {"default", *(config["benchmark"].get("prompts") or {})}
    if config["prompt"] not in prompts:
        name = config["benchmark"].get("name")
        raise UserError(
            f"benchmark {name} has no prompt {config['prompt']!r}: {suggest(config['prompt'], prompts)}"
        )


def benchmark_file(name: str) -> dict[str, Any]:
    """What conf/benchmark/NAME.yaml and those it builds on say; of a task of lmms-eval, its metrics."""
    import yaml

    file = conf_dir() / "benchmark" / f"{name}.yaml"
    if not file.is_file():
        return catalogue.scoring(name)
    own = yaml.safe_load(file.read_text(encoding="utf-8"))
    # Of the defaults only this group's: the wordings of conf/prompts stand in a cell's own config.
    bases = [base for base in own.pop("defaults", ()) if isinstance(base, str) and base != "_self_"]
    return {key: value for base in bases for key, value in benchmark_file(base).items()} | own


def _check_scoring(benchmark: dict[str, Any]) -> None:
    """Scoring reads these keys from conf/benchmark alone: set for one run, they would change nothing."""
    known = benchmark_file(benchmark["name"])
    for key in ("metric", "metrics", "scale", "reference"):
        if key in known and benchmark.get(key) != known.get(key):
            file = f"conf/benchmark/{benchmark['name']}.yaml"
            raise UserError(f"benchmark.{key} is not an option of a run: change it in {file}.")


def cell_budget(method: dict[str, Any], budget: Any) -> int | None:
    """The budget of a cell: None for a method that keeps everything, else an int above its window."""
    if method.get("capacity") is None:
        return None
    check_budget(budget, method.get("window"))
    return budget
