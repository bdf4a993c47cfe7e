"""decode.invariant: in 16 bits an answer does not depend on which methods run together."""

from __future__ import annotations

import fakes
import pytest
from decoding import prompt, small, tokens

from kvbench import provenance, run, store

NAMES = ["snapkv", "pyramidkv", "adakv", "snapkv+bacon", "adakv+ecokv", "snapkv+keydiff"]
GRID = [(name, budget, 4) for budget in range(12, 76, 8) for name in NAMES]


@pytest.fixture(scope="module")
def half():
    adapter = small({"adapter": "qwen2_vl", "dtype": "bfloat16"}, layers=4)
    return adapter, [tokens(adapter, prompt(adapter), [entry], new=12)[0] for entry in GRID]


@pytest.mark.parametrize("count", [1, 3, 48])
def test_in_16_bits_a_branch_by_itself_depends_on_no_other(half, count):
    adapter, alone = half
    assert len(GRID) == 48
    found = tokens(adapter, prompt(adapter), GRID[:count], new=12, **run.ONE_BY_ONE)
    assert found == alone[:count]


def test_together_some_of_them_change(half):
    """Else there would be nothing to guard against."""
    adapter, alone = half
    assert tokens(adapter, prompt(adapter), GRID, new=12) != alone


@pytest.mark.parametrize("dtype, words, told", [
    ("float32", [], None),
    ("bfloat16", [], "up to 3 together"),
    ("bfloat16", ["decode.invariant=true"], "one branch at a time"),
    ("float16", ["decode.compile=true"], "compiled, up to 3 together"),
    ("float32", ["decode.compile=true"], "compiled"),
])  # fmt: skip
def test_it_is_asked_of_the_engine_and_told_of_the_answers(tmp_path, monkeypatch, dtype, words, told):
    asked = []

    def generate(*arguments, **settings):
        asked.append({key: settings.get(key) for key in run.ONE_BY_ONE})
        return fakes.generate(*arguments, **settings)

    for name in ("load_model", "load_benchmark"):
        monkeypatch.setattr(run, name, getattr(fakes, name))
    monkeypatch.setattr(run, "generate", generate)
    monkeypatch.setattr(run, "_placement", lambda adapter: ("cpu", dtype))
    monkeypatch.setattr(provenance, "git_state", lambda folder: None)
    grid = ["-m", "method=fullkv,snapkv,adakv", "budget=64", "limit=1", f"store={tmp_path}/s"]
    assert fakes.kvbench("run", *grid, *words) == 0
    alone = words == ["decode.invariant=true"]
    assert asked == [run.ONE_BY_ONE if alone else {"max_branch_bytes": None, "cache": None}]
    cell = store.cells(tmp_path / "s")[0]
    (facts,) = store.load_folder(cell.folder).circumstances(cell.digest)
    assert facts["versions"].get("decode") == told


def test_a_graph_and_no_batch_do_not_go_together(tmp_path, capsys):
    words = ["decode.compile=true", "decode.invariant=true", f"store={tmp_path}/s"]
    assert fakes.kvbench("run", *words) == 2
    assert "decode.invariant=true has no batch: drop one" in capsys.readouterr().err
