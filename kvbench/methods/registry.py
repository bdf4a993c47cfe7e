"""The registry of scores, capacities and refresh policies: one frozen dataclass per file, found by name.

Nothing here imports torch, so that listing methods and planning cells stay fast.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvbench.checks import suggest
from kvbench.errors import UserError

KINDS = ("score", "capacity", "refresh")
USUAL_WINDOW = 32  # queries observed by a score that asks for nothing else
_REGISTRY: dict[str, dict[str, type]] = {kind: {} for kind in KINDS}
_FOLDERS = {
    "score": "kvbench.methods.scores",
    "capacity": "kvbench.methods.capacities",
    "refresh": "kvbench.methods.refresh",
}
_loaded: set[str] = set()


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple | None = None,
    odd: bool = False,
    runtime: bool = False,
) -> Any:
    """A dataclass field with what is needed to list and validate it: help and the allowed values.

    runtime: the option never changes an answer, so it is no part of a cell's identity.
    """
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "choices": choices, "odd": odd}
    metadata["runtime"] = runtime
    return dataclasses.field(default=default, metadata=metadata)


def _register(kind: str, name: str, line: str, source: str) -> Callable[[type], type]:
    def decorate(cls: type) -> type:
        known = _REGISTRY[kind].get(name)
        if known is not None and known.__module__ != cls.__module__:
            raise UserError(
                f"{kind} `{name}` is already registered by {known.__module__}; choose another name."
            )
        cls.name, cls.line, cls.source = name, line, source
        _REGISTRY[kind][name] = cls
        return cls

    return decorate


def score(name: str, *, line: str, source: str) -> Callable[[type], type]:
    """Class decorator: make a frozen dataclass available as score `name`."""
    return _register("score", name, line, source)


def capacity(name: str, *, line: str, source: str) -> Callable[[type], type]:
    """Class decorator: make a frozen dataclass available as capacity `name`."""
    return _register("capacity", name, line, source)


def refresh(name: str, *, line: str, source: str) -> Callable[[type], type]:
    """Class decorator: make a frozen dataclass available as refresh policy `name`."""
    return _register("refresh", name, line, source)


def _load(kind: str) -> None:
    if kind in _loaded:
        return
    package = importlib.import_module(_FOLDERS[kind])
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{_FOLDERS[kind]}.{module}")
    _loaded.add(kind)


def load_plugin(path: str | Path) -> None:
    """Import a Python file that registers further scores or capacities."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"plugin file {path} does not exist.")
    spec = importlib.util.spec_from_file_location(f"kvbench_plugin_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a class finds the file that defines it
    spec.loader.exec_module(module)


def names(kind: str) -> list[str]:
    """All registered names of a kind, sorted."""
    _load(kind)
    return sorted(_REGISTRY[kind])


def lookup(kind: str, name: str) -> type:
    """The dataclass behind a name; UserError with the nearest names otherwise."""
    _load(kind)
    if name not in _REGISTRY[kind]:
        raise UserError(f"unknown {kind} `{name}`: {suggest(str(name), _REGISTRY[kind])}")
    return _REGISTRY[kind][name]


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a score or capacity, as `kvbench list methods` prints it."""

    name: str
    type: str
    default: Any
    help: str
    allowed: str
    runtime: bool = False


def _declared(field: dataclasses.Field) -> str:
    """The declared type as text, with or without postponed annotations."""
    return field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))


def _allowed(field: dataclasses.Field) -> str:
    meta = field.metadata
    if meta.get("choices"):
        return "|".join(str(c) for c in meta["choices"])
    low, high = meta.get("minimum"), meta.get("maximum")
    text = ""
    if low is not None or high is not None:
        text = f"{'' if low is None else f'{low:g} <= '}x{'' if high is None else f' <= {high:g}'}"
    return f"{text} odd".strip() if meta.get("odd") else text


def options(kind: str, name: str) -> list[Option]:
    """The options of a score or capacity, in declaration order."""
    cls = lookup(kind, name)
    return [
        Option(f.name, _declared(f), f.default, meta.get("help", ""), _allowed(f), meta.get("runtime", False))
        for f in dataclasses.fields(cls)
        for meta in (f.metadata,)
    ]


def make(kind: str, name: str, values: dict[str, Any]) -> Any:
    """Build a validated score or capacity from plain option values."""
    cls = lookup(kind, name)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            raise UserError(f"{kind} `{name}` has no option `{key}`: {suggest(key, fields)}")
    return cls(**{key: _check(kind, name, fields[key], value) for key, value in values.items()})


def _check(kind: str, name: str, field: dataclasses.Field, value: Any) -> Any:
    where = f"option `{field.name}` of {kind} `{name}`"
    declared = _declared(field).replace(" ", "")
    if value is None:
        if "None" in declared:
            return None
        raise UserError(f"{where} must be {declared}, not empty.")
    base = declared.split("|")[0]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if base == "float" and is_number:
        value = float(value)
    expected = {"bool": bool, "int": int, "float": float, "str": str}[base]
    if not isinstance(value, expected) or (expected is not bool and isinstance(value, bool)):
        raise UserError(f"{where} must be of type {base}, not {value!r}.")
    meta = field.metadata
    if meta.get("choices") and value not in meta["choices"]:
        raise UserError(f"{where} must be one of {', '.join(map(str, meta['choices']))}, not {value!r}.")
    if base in ("int", "float"):
        low, high = meta.get("minimum"), meta.get("maximum")
        if (
            not math.isfinite(value)
            or (low is not None and value < low)
            or (high is not None and value > high)
        ):
            raise UserError(f"{where} must satisfy {_allowed(field) or 'finite x'}, not {value!r}.")
        if meta.get("odd") and value % 2 == 0:
            raise UserError(f"{where} must be odd, not {value!r}.")
    return value


def describe(kind: str, name: str) -> tuple[str, str]:
    """(one line, source) of a score or capacity."""
    cls = lookup(kind, name)
    return cls.line, cls.source
