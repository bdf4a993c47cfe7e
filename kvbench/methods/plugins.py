"""Methods from outside: Python files that a command names, and packages that are installed.

A file registers with the decorators of ``kvbench.methods.registry``; a package names such a module under the
entry-point group ``kvbench.methods``. A store remembers which files its methods came from, so that a later
command can tell, without running them, whether they have changed.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from kvbench.checks import suggest
from kvbench.errors import UserError, first_line
from kvbench.methods import registry, version
from kvbench.support.contents import sha256

GROUP = "kvbench.methods"
# What each file held when it was loaded, and where methods that are not loaded come from.
_loaded: dict[Path, str] = {}
_remembered: dict[tuple[str, str], Path] = {}


@functools.cache
def installed() -> None:
    """Import what packages of this environment offer, once. Raises UserError for one that cannot be."""
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the methods of {point.value} cannot be loaded ({type(error).__name__}: "
                f"{first_line(error)}): repair or remove that package."
            ) from error


def register(kind: str, name: str, line: str = "", source: str = "") -> Callable[[type], type]:
    """Class decorator: make a frozen dataclass available as a score, capacity or refresh, in a notebook say.

    kind: of ``registry.KINDS``. A class of the same name and module takes the place of the former.
    Raises UserError for an unknown kind and for the name of a method that kvbench has.
    """
    if kind not in registry.KINDS:
        raise UserError(f"unknown kind {kind!r}: {suggest(kind, registry.KINDS)}")
    registry.names(kind)  # the shipped ones first: a name that is taken must be refused here
    return getattr(registry, kind)(name, line=line or name, source=source or "one's own")


def load(files: Iterable[str | Path]) -> bool:
    """Import files that register methods; returns whether any is new or has changed since.

    Raises UserError for a file that is missing, does not run, or registers nothing.
    """
    new = False
    for path in (Path(file).expanduser().resolve() for file in files):
        if not path.is_file():
            raise UserError(f"plugin file {path} does not exist: correct plugins=[FILE.py].")
        if _loaded.get(path) == (now := sha256(path)):
            continue
        _load(path)
        _loaded[path], new = now, True
    return new


def _load(path: Path) -> None:
    name = f"kvbench_plugin_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and Path(known.__file__).resolve() != path:
        raise UserError(f"two plugin files are called {path.name}: rename one of them.")
    for kind, methods in registry._REGISTRY.items():  # of an older state of the file
        for method in [method for method, found in methods.items() if found.__module__ == name]:
            del registry._REGISTRY[kind][method]
    for kind in registry.KINDS:
        registry.names(kind)  # the shipped ones first: a name that is taken must be refused here
    version.forget()
    try:
        registry.load_plugin(path)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{_where(path, error)}: {type(error).__name__}: {first_line(error)}") from error
    if not of_module(sys.modules[name]):
        raise UserError(f"{path} registers no method: decorate a class with @score(...) or @capacity(...).")


def _where(path: Path, error: BaseException) -> str:
    """The plugin's own line in an error's traceback; of a syntax error the one that it names."""
    line, frame = getattr(error, "lineno", None), error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return f"plugin {path}, line {line}" if line else f"plugin {path}"


def of_module(module: ModuleType) -> list[tuple[str, str]]:
    """(kind, name) of everything that a module registered."""
    return [
        (kind, name)
        for kind, methods in registry._REGISTRY.items()
        for name, found in methods.items()
        if found.__module__ == module.__name__
    ]


def write(store: Path) -> None:
    """Note in a store where the loaded methods come from. Raises OSError."""
    if not _loaded:
        return
    file = store / "plugins.json"
    known = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    for path in _loaded:
        module = sys.modules[f"kvbench_plugin_{path.stem}"]
        known |= {f"{kind} {name}": str(path) for kind, name in of_module(module)}
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")
    part.replace(file)


def remember(store: Path) -> None:
    """Read what ``write`` noted; nothing is run. A damaged note says nothing."""
    try:
        known = json.loads((store / "plugins.json").read_text("utf-8"))
        _remembered.update({tuple(key.split(" ", 1)): Path(path) for key, path in known.items()})
    except (OSError, ValueError, AttributeError, TypeError):
        return


def source(kind: str, name: str) -> Path | None:
    """The file that a store remembers a method from, if it is there."""
    path = _remembered.get((kind, name))
    return path if path is not None and path.is_file() else None
