"""What a method's source says, as a digest: a changed score makes other answers, and so another cell.

It covers the files that define its parts, what these import inside ``kvbench/methods`` (of a method that
lies elsewhere, inside its own folder too), and what selects for every method. Comments, formatting,
docstrings, and the words of an error or of an option's help do not count: they change no number. Sources are
parsed, never run, so planning stays free of torch.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from kvbench.errors import UserError
from kvbench.methods.registry import KINDS, lookup

HERE = Path(__file__).resolve().parent
SHARED = tuple(HERE / name for name in ("method.py", "observation.py", "select.py"))
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Arguments that describe: of ``option`` and of the decorators that register.
_WORDS = {"help", "line", "source"}


def of(spec: dict[str, Any]) -> str | None:
    """Version of the method part of an identity config; None for one that keeps everything.

    Raises UserError for a part that is not registered.
    """
    if spec.get("capacity") is None:
        return None
    chosen = [(kind, spec[kind]["name"]) for kind in KINDS if spec.get(kind)]
    return _of_parts(tuple(chosen))


@functools.cache
def _of_parts(chosen: tuple[tuple[str, str], ...]) -> str:
    return version(*(_part(kind, name) for kind, name in chosen))


def _part(kind: str, name: str) -> type | Path:
    """The class of a part; of one that is not loaded here, the file that a store remembers it from."""
    from kvbench.methods import plugins

    try:
        return lookup(kind, name)
    except UserError:
        if (file := plugins.source(kind, name)) is None:
            raise
        return file


def version(*things: type | ModuleType | Path) -> str:
    """Ten hex digits for what classes, modules or files say, what they import and what all methods share."""
    said = set().union(*map(_said, [*map(_file, things), *SHARED]))
    return hashlib.sha256("\n".join(sorted(said)).encode()).hexdigest()[:10]


@functools.cache
def _said(start: Path) -> frozenset[str]:
    """Name and digest of a file and of all that it imports."""
    files: dict[Path, str] = {}
    _collect(start, _Scope.of(start), files)
    return frozenset(files.values())


def said(file: Path) -> str:
    """Digest of what a file's code says, without what it imports."""
    return _read(file)[0]


def forget() -> None:
    """Read the sources again next time. They are read once, as the code that runs is loaded once."""
    for cached in (_of_parts, _said, _read):
        cached.cache_clear()


def _file(thing: type | ModuleType | Path) -> Path:
    """The source file of a class or module. Raises UserError for what was typed into a notebook."""
    if isinstance(thing, Path):
        return thing
    module = thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]
    if getattr(module, "__file__", None) is None:
        raise UserError(
            f"{thing.__qualname__} has no file, so answers of it cannot be told from those of a changed one: "
            "put it into FILE.py and give plugins=[FILE.py]."
        )
    return Path(module.__file__).resolve()


class _Scope:
    """Folders whose files count, and where the names of imports begin."""

    def __init__(self, root: Path, inside: tuple[Path, ...]) -> None:
        self.root, self.inside = root, inside

    @classmethod
    def of(cls, file: Path) -> _Scope:
        """Of a file of kvbench: its methods. Of another: its package, else its folder, and these methods."""
        if HERE in file.parents:
            return cls(HERE.parent.parent, (HERE,))
        top = file.parent
        while (top / "__init__.py").exists() and (top.parent / "__init__.py").exists():
            top = top.parent
        return cls(top.parent if (top / "__init__.py").exists() else top, (top, HERE))

    def find(self, name: str, beside: Path) -> Path | None:
        """The file of a dotted module name, if it counts."""
        parts = name.split(".")
        for root in (self.root, beside, HERE.parent.parent):
            for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
                if any(folder in path.parents for folder in self.inside) and path.is_file():
                    return path
        return None


def _collect(file: Path, scope: _Scope, files: dict[Path, str]) -> None:
    """Add a file and what it imports to ``files``: what each of them says."""
    if file in files:
        return
    said, imports = _read(file)
    files[file] = f"{file.name} {said}"
    for name, level in imports:
        if level:
            above = file.parents[level - 1]
            name = ".".join([*above.relative_to(scope.root).parts, *filter(None, [name])])
        found = scope.find(name, file.parent)
        if found is not None:
            _collect(found, scope, files)


@functools.cache
def _read(file: Path) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Digest of what a file's code says; (dotted name, level) of what it imports, inside functions too."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"cannot read {file}, which defines a method ({error}): correct it.") from error
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = [alias.name for alias in node.names]  # modules or what a module holds
            names = [
                node.module or "",
                *(f"{node.module}.{name}" if node.module else name for name in inside),
            ]
            found += [(name, node.level) for name in names]
    words: list[str] = []
    _spell(_silent(tree), words)
    return hashlib.sha256("".join(words).encode()).hexdigest(), tuple(dict.fromkeys(found))


def _silent(tree: ast.Module) -> ast.Module:
    """The tree without docstrings and without the words of errors, help and origin."""
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        elif isinstance(node, ast.Raise) and _called(node.exc) == "UserError":
            node.exc.args, node.exc.keywords = [], []
        elif isinstance(node, ast.Call) and _called(node) in ("option", *KINDS):
            node.keywords = [word for word in node.keywords if word.arg not in _WORDS]
            if _called(node) == "option":
                node.args = node.args[:1]
    return tree


def _called(node: ast.AST | None) -> str | None:
    """The name of the function in a call."""
    if not isinstance(node, ast.Call):
        return None
    return getattr(node.func, "id", None) or getattr(node.func, "attr", None)


def _spell(node: Any, words: list[str]) -> None:
    """Append one spelling of a tree for all releases of Python: what is empty is left out."""
    if isinstance(node, ast.AST):
        words.append(f"{type(node).__name__}(")
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != [] and name not in ("ctx", "kind", "type_comment"):
                words.append(f"{name}=")
                _spell(value, words)
        words.append(")")
    elif isinstance(node, list):
        words.append("[")
        for item in node:
            _spell(item, words)
        words.append("]")
    else:
        words.append(f"{node!r},")
