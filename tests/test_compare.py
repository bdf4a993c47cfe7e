"""Two stores side by side, and tables for papers and pages."""

from __future__ import annotations

import re
import shutil
import subprocess

import fakestore
import pytest
from fakestore import benchmark_cfg, method_cfg
from test_table import grid, put

from kvbench import analysis, cli
from kvbench.analysis import compare
from kvbench.analysis.tables.latex import escape
from kvbench.errors import UserError

EVIL = "a_b & 50% #1 $x$ {y} \\z ~^ <b>|\"'` é 中"


def fill(store, texts, **options):
    cfg = benchmark_cfg("documents_mini")
    fakestore.add(store, cfg, method_cfg("fullkv"), None, dict(enumerate(["one two"] * 4)))
    return fakestore.add(store, cfg, method_cfg("snapkv", **options), 64, dict(enumerate(texts)))


def test_flips_and_differences_are_counted(tmp_path):
    fill(tmp_path / "a", ["one two"] * 4)
    fill(tmp_path / "b", ["one two", "one", "three", "one two"])
    for name in "ab":
        analysis.score_store(tmp_path / name)
    full, pair = compare.compare(tmp_path / "a", tmp_path / "b").pairs
    assert (full.changed, full.gap.delta, full.flip_rate) == (0, 0, 0)
    assert (pair.common, pair.changed, pair.lost, pair.won, pair.flip_rate) == (4, 2, 2, 0, 0.5)
    assert pair.gap.delta == pytest.approx((0 - 1 / 3 - 1 + 0) / 4)
    back = compare.compare(tmp_path / "b", tmp_path / "a").pairs[1]
    assert (back.lost, back.won) == (0, 2)


def test_only_the_same_cells_are_compared(tmp_path):
    fill(tmp_path / "a", ["one"] * 4)
    fill(tmp_path / "b", ["one"] * 4, window=8)
    found = compare.compare(tmp_path / "a", tmp_path / "b")
    assert [pair.first.cell.method for pair in found.pairs] == ["fullkv"]
    assert found.only == (["snapkv at budget 64 on documents_mini"],) * 2
    put(tmp_path / "c", "docqa_mini", "snapkv", 64, [1.0])
    with pytest.raises(UserError, match="no cell in common"):
        compare.compare(tmp_path / "a", tmp_path / "c")
    assert cli.main(["compare", str(tmp_path / "a")]) == 2


def latex(tmp_path):
    grid(tmp_path)
    put(tmp_path, "docqa_mini", "snapkv", 64, [1.0] * 12, model=EVIL)
    return analysis.table(tmp_path, "latex")


def test_latex_is_escaped_and_every_row_has_every_column(tmp_path):
    text = latex(tmp_path)
    assert text.isascii()
    for block in re.findall(r"\\begin\{tabular\}\{l(c+)\}(.*?)\\end\{tabular\}", text, re.S):
        for row in [row for row in block[1].split(r"\\") if "&" in row]:
            spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
            assert len(re.findall(r"(?<!\\)&", row)) + sum(spans) - len(spans) == len(block[0])
    assert r"\textbf{95.0} $\uparrow$45.0{*}" in text
    plain = re.sub(r"\\[&%$#_{}]", "", escape(EVIL))
    assert plain.count("{") == plain.count("}") and not re.search("[&%#_]", plain)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex: the source alone is checked")
def test_latex_compiles(tmp_path):
    source = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{latex(tmp_path)}"
    (tmp_path / "t.tex").write_text(source + "\\end{document}\n")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1500:]


def test_html_is_escaped_and_carries_what_it_sorts_by(tmp_path):
    grid(tmp_path)
    put(tmp_path, "docqa_mini", "snapkv", 64, [1.0] * 12, model="<script>")
    text = analysis.table(tmp_path, "html")
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert 'data-sort="0.95"><b>95.0</b> ↑45.0*●<br>' in text
