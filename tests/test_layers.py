"""Imports point one way: who may import whom, those inside functions included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "kvbench"
# A part of kvbench, and the parts that it may import; "*" stands for everything but what is named after it.
ALLOWED = {
    "errors": set(),
    "words": set(),
    "paths": set(),
    "checks": {"errors"},
    "memory": {"errors"},
    "methods": {"errors", "checks", "memory"},
    "store": {"errors", "words", "masking", "methods"},
    "engine": {"errors", "memory", "methods", "store"},
    "models": {"errors", "memory", "methods", "engine", "embedded", "config", "hub", "paths"},
    "calibration": {"errors", "store", "engine", "embedded"},
}
FORBIDDEN = {
    "analysis": {"engine", "models", "run", "launch"},
    "claims": {"report"},
    "reference": {"analysis"},
}


def imports(part: str) -> set[str]:
    """The other parts of kvbench that a part's modules import, but for types alone."""
    folder = ROOT / part
    found = set()
    for file in folder.rglob("*.py") if folder.is_dir() else [ROOT / f"{part}.py"]:
        for node in _run(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "kvbench":
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvbench."):
                found.add(node.module.split(".")[1])
            elif isinstance(node, ast.Import):
                found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("kvbench.")}
    return found - {part}


def _run(node: ast.AST):
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"):
            yield child
            yield from _run(child)


@pytest.mark.parametrize("part", ALLOWED)
def test_a_low_part_imports_lower_ones_alone(part):
    assert imports(part) <= ALLOWED[part]


@pytest.mark.parametrize("part", FORBIDDEN)
def test_what_reads_results_computes_none(part):
    assert not imports(part) & FORBIDDEN[part]


def test_nothing_imports_commands_but_the_command_line():
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {part for part in parts - {"__init__", "commands"} if "commands" in imports(part)} == {"cli"}
