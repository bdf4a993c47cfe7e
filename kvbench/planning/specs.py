"""The spec of a method, as a cell holds it: capacity, score and refresh with every option."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from kvbench.errors import UserError
from kvbench.methods import registry
from kvbench.planning import compose, config
from kvbench.planning.axes import JOB_AXES
from kvbench.planning.axes import values as axis_values

# Composed methods and refreshes of this process: composing one takes tens of milliseconds, and a grid has
# few of them in many cells.
_composed: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}


def draws(method: dict[str, Any]) -> bool:
    return method.get("score") is not None and registry.lookup("score", method["score"]["name"]).random


def seeded(method: dict[str, Any], seed: int) -> dict[str, Any]:
    """A method that draws has the run's seed, unless its own option names one."""
    if not draws(method) or method["score"]["seed"] is not None:
        return method
    return {**method, "score": {**method["score"], "seed": seed}}


def spanned(raw: dict[str, Any], overrides: list[str]) -> list[tuple[dict[str, Any], Any]]:
    """Every (method spec, budget) that a job's ``axes`` span; options apply to methods that have them."""
    axes = {axis.key_or_group: axis_values(axis) for axis in compose.parse(raw["axes"])}
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


def finish(spec: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
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
    return finish({**spec, "refresh": _composed_group("refresh", refresh, overrides)}, raw)


def _default_window(score: str, model: dict[str, Any]) -> int:
    """A score's own default comes first (ecokv: 4 queries), then the model's, then the usual 32."""
    base = registry.USUAL_WINDOW
    own = registry.lookup("score", score).default_window
    return own if own != base else model.get("window") or base
