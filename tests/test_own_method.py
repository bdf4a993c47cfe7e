"""The recipes of docs/extending.md, followed in a copy of the project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.paths import cache_dir

ROOT = Path(__file__).resolve().parent.parent


METHOD = "## Add your own method"
SIBLING = "## Add a sibling of a model"
BENCHMARK = "## Add a benchmark"
EXPERIMENT = "## Add an experiment, and published values beside it"


def fenced(language: str, heading: str = METHOD) -> str:
    """The one code block of that language in a section."""
    section = (ROOT / "docs/extending.md").read_text().split(f"{heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(rf"```{language}\n(.*?)```", section, flags=re.S)
    return block


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for folder in ("kvbench", "conf"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "kvbench/methods/scores/middle.py").write_text(fenced("python"))
    (root / "conf/method/middle.yaml").write_text(fenced("yaml"))
    (root / "conf/model/qwen2_vl_2b.yaml").write_text(fenced("yaml", SIBLING))
    (root / "conf/benchmark/invoices.yaml").write_text(fenced("yaml", BENCHMARK))
    (root / "conf/experiment/lab_table1.yaml").write_text(fenced("yaml", EXPERIMENT))
    (root / "kvbench/reference/data/lab.csv").write_text(fenced("csv", EXPERIMENT))
    return root


def python(project: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=project, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(project), "HOME": str(project), "KVBENCH_CACHE": str(cache_dir())},
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


def test_a_sibling_answers_a_benchmark_of_ones_own(project):
    data = python(
        project, "-c", "from kvbench.benchmarks import micro; print(micro.folder('docvqa'))"
    ).strip()
    kvbench = ["-m", "kvbench.cli"]
    toy = ["model=qwen2_vl_2b", "model.weights=random", "model.size=toy", "model.dtype=float32"]
    words = [*toy, "benchmark=invoices", f"benchmark.data={data}", "store=runs/own", "limit=2"]
    python(project, *kvbench, "run", "-m", *words, "method=fullkv,snapkv+middle", "budget=48")
    assert "qwen2_vl_2b" in (table := python(project, *kvbench, "table", "store=runs/own"))
    assert "Invoices" in table and "snapkv+middle" in table and "—" not in table


def test_an_experiment_stands_beside_its_published_values(project):
    kvbench = ["-m", "kvbench.cli"]
    python(project, *kvbench, "run", "experiment=lab_table1", "limit=2")
    table = python(project, *kvbench, "table", "lab_table1")
    assert all(published in table for published in ("93.1", "61.4", "64.9"))
    assert "lab" in python(project, *kvbench, "reference", "--paper", "lab")
