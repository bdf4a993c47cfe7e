"""The embedded model through the engine says what `model.generate` says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kvbench import benchmarks, models

spec = importlib.util.spec_from_file_location(
    "check_generate", Path(__file__).resolve().parent.parent / "scripts" / "check_generate.py"
)
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)


@pytest.fixture(scope="module")
def adapter():
    return models.load(check.configs(check.NAMES[0])[0])


@pytest.mark.parametrize("name", check.NAMES)
def test_fullkv_equals_generate(adapter, name):
    benchmark = benchmarks.load(check.configs(name)[1])
    assert check.differing(adapter, benchmark, samples=3, new_tokens=20) == []
