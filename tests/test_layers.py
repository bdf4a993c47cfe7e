"""Imports point one way: who may import whom, those inside functions included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "kvbench"
# The parts of kvbench from the lowest up: each imports those above its own line here, and no other.
ORDER = [
    *("errors", "paths", "checks", "memory", "rendering", "support"),
    *("methods", "store", "engine", "embedded", "calibration", "models"),
    *("benchmarks", "identity", "reference", "planning", "setup"),
    *("observations", "analysis", "running", "claims", "report", "bench"),
    *("api", "commands", "cli"),
]
# What reads stored results computes no answer, although it comes later.
FORBIDDEN = {"analysis": {"engine", "models"}, "claims": {"report"}}


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
    return found - {part, "__version__"}


def _run(node: ast.AST):
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"):
            yield child
            yield from _run(child)


@pytest.mark.parametrize("part", ORDER)
def test_imports_point_one_way(part):
    assert imports(part) <= set(ORDER[: ORDER.index(part)]) - FORBIDDEN.get(part, set())


def test_every_part_has_its_place():
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} == set(ORDER)
