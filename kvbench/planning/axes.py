"""Overrides told apart: those that vary the cells inside a job, and those that make jobs."""

from __future__ import annotations

import itertools
from typing import Any

from kvbench.errors import UserError
from kvbench.planning import compose

JOB_AXES = ("model", "benchmark", "prompt", "seed", "shard")


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
        line = override.input_line
        if key.startswith("launcher.extra") and not line.startswith("+"):
            line = f"++{line}"  # a mapping of any keys, which Hydra lets nobody extend unasked
        (inner if inside else others).append(line)
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
            others[key] = [f"{key}={value}" for value in values(override)]
        else:
            others[key] = [override.input_line]
    if shards > 1 and shard is None and "shard" not in others:
        others["shard"] = [f"shard={number}" for number in range(shards)]
    axes = [_axes(list(cells.values()))] if cells else []
    return [[*combination, *axes] for combination in itertools.product(*others.values())]


def values(override: Any) -> list[str]:
    """What an override sweeps over, as text. Raises UserError for a range or for nothing."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if not override.is_discrete_sweep():
        raise UserError(f"cannot sweep {override.input_line!r}: list the values, as in budget=128,64,32.")
    values = list(override.sweep_string_iterator())
    if not values:
        raise UserError(f"{override.input_line!r} matches nothing: see `kvbench list`.")
    return values
