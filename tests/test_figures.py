"""Figures: which there are, the same bytes each time, and pages that can hold several of them."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from test_table import grid, put

from kvbench.analysis import figures
from kvbench.analysis.figures import cost, style
from kvbench.analysis.results import entries, mean
from kvbench.errors import UserError


def test_the_same_results_give_the_same_bytes(tmp_path):
    grid(tmp_path)
    first = figures.write(tmp_path, tmp_path / "one")
    second = figures.write(tmp_path, tmp_path / "two")
    assert {path.suffix for path in first} == {".svg", ".pdf", ".png"} and len(first) == 6
    for one, two in zip(first, second, strict=True):
        assert one.name == two.name and one.read_bytes() == two.read_bytes()


def test_two_options_make_a_map_and_one_does_not(tmp_path):
    for alpha in (0.1, 0.5):
        put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [alpha] * 12, alpha=alpha, beta=1)
    assert not any("alpha" in name for name in figures.draw(tmp_path))
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [0.75] * 12, alpha=0.5, beta=2)
    (name,) = [name for name in figures.draw(tmp_path) if "alpha" in name]
    (panel, _) = figures.draw(tmp_path)[name].axes
    assert name == "toy-docqa_mini-snapkv+bacon-64-alpha-beta"
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("beta", "alpha")
    assert [text.get_text() for text in panel.texts] == ["10.0", "—", "50.0", "75.0"]


def test_lines_and_bands_are_the_results(tmp_path):
    grid(tmp_path)
    figure = figures.draw(tmp_path)["score-against-budget-toy"]
    (panel,) = figure.axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in panel.lines}
    assert lines["+bacon"] == [[128, 95], [64, 95]] and lines["window attention"] == [[128, 95], [64, 50]]
    assert lines["fullkv"][0][1] == 100
    half = next(entry for entry in entries(tmp_path) if entry.label == "snapkv" and entry.cell.budget == 64)
    band = mean(half, "anls")
    assert 0.25 < band.low < 0.35 and 0.65 < band.high < 0.75  # 20 coins: half a width of about 0.22


@pytest.mark.parametrize("values", [[1.0], [1.0, math.nan, 0.0], [0.5] * 12, []])
def test_one_sample_broken_and_constant_scores_still_draw(tmp_path, values):
    put(tmp_path, "docqa_mini", "snapkv", 64, values)
    put(tmp_path, "docqa_mini", "snapkv", 32, values)
    figures.write(tmp_path, tmp_path / "out", ["svg"])


def test_drawings_in_one_page_share_no_id(tmp_path):
    grid(tmp_path)
    ids = []
    for name, figure in figures.draw(tmp_path).items():
        text = style.inline(figure, f'{name} "<b>')
        tree = ET.fromstring(text)
        mine = [element.get("id") for element in tree.iter() if element.get("id")]
        assert "currentColor" in text and style.INK not in text and "<metadata" not in text
        assert len(mine) == len(set(mine))
        ids += mine
    assert len(ids) == len(set(ids))


def test_costs_are_vectors(tmp_path):
    """64 entries held are 128 vectors; 10 fetched ones come on top."""
    one_shot = put(tmp_path, "docqa_mini", "snapkv", 64, [0.5] * 12, metric=cost.FIDELITY)
    fetching = put(tmp_path, "docqa_mini", "snapkv", 64, [0.5] * 12, metric=cost.FIDELITY, refresh="quest")
    found = entries(tmp_path)
    figure = cost.cost_against_fidelity(found, {fetching.digest: 10.0})
    (panel,) = figure.axes
    assert panel.get_xlabel() == "vectors read per KV head and step"
    places = {entry.cell.digest: entry.label for entry in found}
    drawn = {bars.get_label(): bars.lines[0].get_xdata().tolist() for bars in panel.containers}
    assert drawn == {places[one_shot.digest]: [128], places[fetching.digest]: [138]}


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    grid(tmp_path)
    (tmp_path / "file").touch()
    (figure, *_) = figures.draw(tmp_path).values()
    with pytest.raises(UserError, match="cannot write"):
        style.save(figure, tmp_path / "file" / "a.svg")


def test_bad_input(tmp_path):
    with pytest.raises(UserError, match="store=DIR"):
        figures.draw(tmp_path)
    grid(tmp_path)
    with pytest.raises(UserError, match="svg, pdf, png"):
        figures.write(tmp_path, tmp_path / "out", ["gif"])
