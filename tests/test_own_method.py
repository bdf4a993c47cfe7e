"""The recipe of docs/extending.md for a new method, followed in a copy of the project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def fenced(language: str) -> str:
    """The one code block of that language in the section on own methods."""
    section = (ROOT / "docs/extending.md").read_text().split("## Add your own method")[1].split("\n## ")[0]
    (block,) = re.findall(rf"```{language}\n(.*?)```", section, flags=re.S)
    return block


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for folder in ("kvbench", "conf"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "kvbench/methods/scores/middle.py").write_text(fenced("python"))
    (root / "conf/method/middle.yaml").write_text(fenced("yaml"))
    return root


def python(project: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=project, env={"PYTHONPATH": str(project), "HOME": str(project)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_file_is_short():
    assert len(fenced("python").splitlines()) <= 25


def test_it_is_listed_and_planned(project):
    assert "middle" in python(project, "-m", "kvbench.cli", "list", "methods")
    plan = [
        "-m",
        "kvbench.cli",
        "plan",
        "-m",
        "method=middle,adakv+middle",
        "method.score.centre=0.25",
        "budget=64",
    ]
    text = python(project, *plan, "limit=1", "--cells", "store=runs/none")
    assert len(re.findall(r"budget=64", text)) == 2


def test_it_selects_what_it_scores(project):
    code = """
import torch, kvbench
k = torch.randn(2, 2, 40, 8)
kept = kvbench.select(k, k, torch.randn(2, 4, 4, 8), method='snapkv+middle', budget=9, window=4, centre=0.5)
print(kept[0][0].tolist())
"""
    assert python(project, "-c", code).strip() == "[16, 17, 18, 19, 20, 36, 37, 38, 39]"
