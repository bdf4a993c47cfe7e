"""How many cells or prompts an experiment has, read from its YAML alone: composing all of them takes long.

Tests hold these numbers against the cells that ``plan`` makes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import yaml

from kvbench import methods
from kvbench.methods import registry
from kvbench.paths import conf_dir
from kvbench.planning.axes import JOB_AXES
from kvbench.planning.plan import excluded
from kvbench.planning.specs import option_paths


def profiles(name: str) -> list[str]:
    """The profiles that an experiment's groups all have, but for optional ones; [""] where it takes none."""
    groups = [group for group, optional in _groups(name) if group and not optional]
    found = [{file.stem for file in (conf_dir() / group).glob("*.yaml")} for group in groups]
    return sorted(set.intersection(*found)) if found else [""]


def size(name: str, profile: str) -> str:
    """``37``, or of an experiment that observes, ``120 prompts``."""
    fields, axes = read(name, profile)
    if fields.get("observe"):
        return f"{_jobs(axes) * fields['limit'] if 'limit' in fields else '?'} prompts"
    return str(cells(axes, fields.get("exclude", ())))


def read(name: str, profile: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """An experiment's own fields and, by key, the distinct values of its axes, as a profile changes them."""
    fields: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for group, _ in _groups(name):
        part = _file(group, profile) if group else _file("experiment", name)
        fields |= part
        params |= part.get("hydra", {}).get("sweeper", {}).get("params", {})
    values = {key: [word.strip() for word in str(value).split(",")] for key, value in params.items()}
    return fields, {key: list(dict.fromkeys(words)) for key, words in values.items()}


def cells(axes: dict[str, list[str]], exclude: Iterable[str] = ()) -> int:
    """Cells that axes span, over all jobs; ``exclude``: patterns MODEL/METHOD."""
    others = {key: values for key, values in axes.items() if key != "model"}
    return _jobs(others) * sum(_of_model(others, model, exclude) for model in axes.get("model", [""]))


def _jobs(axes: dict[str, list[str]]) -> int:
    return math.prod(len(values) for key, values in axes.items() if key in JOB_AXES)


def _of_model(axes: dict[str, list[str]], model: str, exclude: Iterable[str]) -> int:
    """Cells of one job: for each method and policy, its budgets times the values of the options it has."""
    names = [name for name in axes.get("method", ["snapkv"]) if not excluded(model, name, exclude)]
    total = 0
    for parts in dict.fromkeys(map(methods.parse, names)):
        if parts is None:
            total += 1  # keeps everything: no budget, no option
            continue
        for policy in axes.get("refresh", ["none"]):
            chosen = zip(registry.KINDS, (parts[1], parts[0], policy), strict=True)
            known = option_paths({kind: {"name": part} for kind, part in chosen})
            # Two keys of one option, refresh.OPTION and refresh.POLICY.OPTION: the more specific one counts.
            own = {known[key]: key for key in sorted(axes, key=lambda key: key.count(".")) if key in known}
            total += len(axes.get("budget", [""])) * math.prod(len(axes[key]) for key in own.values())
    return total


def _groups(name: str) -> list[tuple[str, bool]]:
    """(profile group, whether it is optional) in the order of an experiment's file; "" is the file itself."""
    entries = _file("experiment", name).get("defaults", [])
    entries = entries if "_self_" in entries else [*entries, "_self_"]
    groups = ["" if entry == "_self_" else next(iter(entry)) for entry in entries]
    return [(g.removeprefix("optional ").lstrip("/"), g.startswith("optional ")) for g in groups]


@functools.cache
def _file(group: str, name: str) -> dict[str, Any]:
    """What a file says; an optional group that has no such file says nothing."""
    file = conf_dir() / group / f"{name}.yaml"
    return (yaml.safe_load(file.read_text("utf-8")) or {}) if file.is_file() else {}
