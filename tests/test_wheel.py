"""The wheel, installed outside of the checkout, has all that a run needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvbench.paths import cache_dir

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("kvbench", "conf", "pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PARTS:  # a build leaves folders beside what it builds
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
    ]
    subprocess.run([*command, str(source)], check=True)
    (built,) = out.glob("kvbench-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder that holds the package and nothing of the checkout."""
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_it_holds_every_file_that_is_not_code(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    tracked = subprocess.run(["git", "ls-files", "kvbench", "conf"], cwd=ROOT, capture_output=True, text=True)
    wanted = {f"kvbench/{name}" if name.startswith("conf/") else name for name in tracked.stdout.split()}
    assert len(wanted) > 300 and not wanted - packed


def test_a_cell_runs_in_another_folder(installed, tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(installed), "KVBENCH_CACHE": str(cache_dir())}

    def python(code: str, *words: str) -> str:
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kvbench(*words: str) -> str:
        return python("import sys; from kvbench.cli import main; sys.exit(main())", *words)

    assert python("import kvbench; print(kvbench.__file__)").startswith(str(installed))
    cell = ("model=embedded", "benchmark=docqa_mini", "method=snapkv", "budget=64", "limit=1")
    kvbench("run", *cell, "store=runs/x")
    assert "snapkv" in kvbench("table", "store=runs/x") and (tmp_path / "runs/x").is_dir()
    assert "bacon_table1" in kvbench("list", "experiments")
