"""A store's results stand beside the published values of the same cells, in the same unit."""

from __future__ import annotations

import pytest
from test_table import put

from kvbench import cli
from kvbench.analysis.beside import beside, to_markdown
from kvbench.errors import UserError
from kvbench.methods import registry

MODEL = "llava_next_mistral_7b"


def bacon(store, values, window=32, **options):
    """A cell of snapkv+bacon with all its options, as the planner stores them."""
    usual = {option.name: option.default for option in registry.options("score", "bacon")}
    put(store, "docvqa", "snapkv+bacon", 64, values, model=MODEL, window=window, **usual | options)


def test_measured_paper_and_difference(tmp_path):
    put(tmp_path, "docvqa", "fullkv", None, [1.0, 0.0] * 10, model=MODEL)
    bacon(tmp_path, [1.0, 1.0, 0.0, 0.0] * 5)
    pairs = beside(tmp_path, "bacon:1")
    assert [(p.published.method, p.published.value) for p in pairs] == [
        ("fullkv", "62.7"),
        ("snapkv+bacon", "53.9"),
    ]
    assert pairs[1].value == 50 and pairs[1].n == 20 and pairs[1].low < 50 < pairs[1].high
    assert pairs[1].difference == pytest.approx(-3.9)
    line = to_markdown(pairs).splitlines()[-1]
    assert "| 50.0 | [" in line and line.endswith("| 53.9 | -3.9 | 20 |")


def test_options_tell_cells_apart(tmp_path):
    bacon(tmp_path, [1.0] * 4)
    bacon(tmp_path, [0.0] * 4, radius=3)
    found = {p.published.setting: p.value for p in beside(tmp_path, "bacon:7")}
    assert found == {"radius=3": 0.0, "radius=5": 100.0}
    assert [p.value for p in beside(tmp_path, "bacon:1")] == [100.0]


def test_another_window_is_another_cell(tmp_path):
    bacon(tmp_path, [1.0] * 4, window=16)
    with pytest.raises(UserError, match="no scored cell of bacon table 1"):
        beside(tmp_path, "bacon:1")


def test_a_mistake_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="PAPER:TABLE"):
        beside(tmp_path, "bacon")
    with pytest.raises(UserError, match="there is no table '99' of bacon"):
        beside(tmp_path, "bacon:99")
    assert cli.main(["table", f"store={tmp_path}", "--beside", "bacon:99"]) == 2
