"""Two stores side by side, and tables for papers and pages."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import warnings

import fakestore
import latexcheck
import pytest
from fakestore import benchmark_cfg, method_cfg
from test_table import grid, put

from kvbench import analysis, cli
from kvbench.analysis import compare
from kvbench.analysis.tables import beside_paper
from kvbench.errors import UserError
from kvbench.planning import experiments
from kvbench.rendering.latex import escape

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
    assert full.p == 1 and math.isnan(pair.p)  # fractions have no exact test
    back = compare.compare(tmp_path / "b", tmp_path / "a").pairs[1]
    assert (back.lost, back.won) == (0, 2)


def test_right_and_wrong_have_an_exact_test_of_one_family(tmp_path):
    texts = {name: ["one"] * kept + ["two"] * (12 - kept) for name, kept in (("a", 12), ("b", 5), ("c", 4))}
    for name, given in (("first", ["a", "a"]), ("second", ["b", "c"])):
        for window, text in zip((8, 16), given, strict=True):
            cfg = benchmark_cfg("documents_mini")
            fakestore.add(tmp_path / name, cfg, method_cfg("fullkv"), None, dict(enumerate(["one"] * 12)))
            fakestore.add(
                tmp_path / name, cfg, method_cfg("snapkv", window), 64, dict(enumerate(texts[text]))
            )
        analysis.score_store(tmp_path / name)
    record = compare.table(compare.compare(tmp_path / "first", tmp_path / "second"))
    columns, rows = record.columns, record.rows
    shown = {row.label: dict(zip(columns, (c.text for c in row.cells), strict=True)) for row in rows}
    by_window = {int(cell[-1] == "6"): row for cell, row in shown.items() if "window" in cell}
    # 7 and 8 discordant samples, all lost: p = 2 / 2^7 and 2 / 2^8; fullkv (p = 1) is in the family of three.
    assert [by_window[i]["p"] for i in (0, 1)] == ["0.01562", "0.007812"]
    assert [by_window[i]["p Holm"] for i in (0, 1)] == ["0.03125", "0.02344"]
    assert "over one family" in record.notes[0]


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


def beside(tmp_path):
    put(tmp_path, "docvqa", "fullkv", None, [1.0, 0.0] * 10, model="qwen2_vl_7b")
    return beside_paper(tmp_path, experiments.find("bacon_table1"), "latex")


def test_latex_is_escaped_and_every_row_has_every_column(tmp_path):
    text = latex(tmp_path)
    latexcheck.check(text)
    assert r"\textbf{95.0} $\uparrow$45.0{*}" in text
    plain = re.sub(r"\\[&%$#_{}]", "", escape(EVIL))
    assert plain.count("{") == plain.count("}") and not re.search("[&%#_]", plain)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"\end{tabular}", ""),
        (r"\bottomrule", r"\bottomrul"),
        (r" & ", " "),
        (r"\_", "_"),
        (r"\%", "%"),
        (r"\multicolumn{2}", r"\multicolumn{3}"),
        (r"$\uparrow$", r"$\uparrow"),
        (r"\textbf{95.0}", r"\textbf{95.0"),
        (r"\cmidrule(lr){2-3}", r"\cmidrule(lr){2-4}"),
        ("method", "méthode"),
    ],
)
def test_the_check_without_latex_finds_what_would_not_compile(tmp_path, right, wrong):
    text = latex(tmp_path)
    assert right in text
    with pytest.raises(AssertionError):
        latexcheck.check(text.replace(right, wrong, 1))


def test_latex_compiles(tmp_path):
    text = latex(tmp_path) + beside(tmp_path / "paper")
    latexcheck.check(text)
    if shutil.which("pdflatex") is None:
        warnings.warn("no pdflatex here: the LaTeX source alone is checked", stacklevel=1)
        return
    source = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{text}"
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
