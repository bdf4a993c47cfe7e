"""The table says what the scores say: differences, noise, holes and the commands that fill them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import fakestore
import numpy as np
import pytest
from fakestore import benchmark_cfg, method_cfg

from kvbench import analysis, cli
from kvbench.analysis.bootstrap import Difference
from kvbench.analysis.resampling import METHODS, interval
from kvbench.analysis.results import entries, rows, settings
from kvbench.analysis.tables import Choice, Table, build
from kvbench.analysis.tables.footer import chance
from kvbench.analysis.tables.shape import Value
from kvbench.benchmarks.base import Scores
from kvbench.errors import UserError
from kvbench.store import Cell, write_atomic


def put(
    store, benchmark, method, budget, values, *, metric="anls", kept=None, model="toy", warnings=(), **options
):
    """A cell with these per-sample scores, as score_store leaves it (nothing is answered)."""
    refresh, capacity = options.pop("refresh", None), options.pop("capacity", {})
    spec = method_cfg(method, **options) | ({"refresh": {"name": refresh}} if refresh else {})
    spec |= {"capacity": spec["capacity"] | capacity} if capacity else {}
    cell = fakestore.add(store, benchmark_cfg(benchmark), spec, budget, {}, model=model)
    values = dict(enumerate(values))
    mean = sum(values.values()) / len(values) if values else math.nan
    scores = Scores(len(values), {metric: mean}, {metric: values}, list(warnings))
    entry = {"min": kept or budget or 400, "mean": float(kept or budget or 400), "max": kept or budget or 400}
    document = {"digest": cell.digest, "key": "k", "kept": entry, **scores.to_dict()}
    write_atomic(cell.folder / "scores" / f"{cell.digest}.json", json.dumps(document))
    return cell


def grid(store, n=20):
    """docqa_mini: bacon clearly better at 64, the same at 128."""
    put(store, "docqa_mini", "fullkv", None, [1.0] * n)
    half = [float(i % 2) for i in range(n)]
    put(store, "docqa_mini", "snapkv", 128, [1.0] * (n - 1) + [0.0])
    put(store, "docqa_mini", "snapkv+bacon", 128, [1.0] * (n - 1) + [0.0])
    put(store, "docqa_mini", "snapkv", 64, half)
    put(store, "docqa_mini", "snapkv+bacon", 64, [1.0] * (n - 2) + [0.0, 1.0])


def lines(text, start):
    return [line for line in text.splitlines() if line.startswith(start)]


def test_values_differences_and_marks(tmp_path):
    grid(tmp_path)
    text = analysis.table(tmp_path, width=100)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert re.search(r"DocQA \(mini\) ANLS", text)
    assert lines(text, "fullkv")[0].split() == ["fullkv", "100.0"]
    assert lines(text, "snapkv ")[0].split() == ["snapkv", "95.0", "50.0"]
    assert lines(text, "snapkv+bacon")[0].split() == ["snapkv+bacon", "95.0", "→0.0", "95.0", "↑45.0*●"]
    assert "[+0.0,+0.0]" in text and re.search(r"\[\+\d\d\.\d,\+\d\d\.\d\]", text)
    assert "docqa_mini: 20 samples\n" in text
    assert "realised entries per head, fullkv: full: 400.0\n" in text
    assert "realised entries per head, snapkv, snapkv+bacon: 128: 128.0, 64: 64.0\n" in text
    assert "—" not in text


def test_a_lead_within_noise_is_not_marked(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.0, 1.0] * 10)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [1.0, 0.0] * 9 + [1.0, 1.0])
    text = analysis.table(tmp_path)
    assert lines(text, "snapkv+bacon")[0].split() == ["snapkv+bacon", "55.0", "↑5.0"]
    assert "[-3" in text or "[-4" in text


def test_a_loss_points_down(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [1.0] * 20)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [0.5] * 20)
    assert "50.0 ↓50.0*" in analysis.table(tmp_path)
    assert lines(analysis.table(tmp_path), "snapkv ")[0].split() == ["snapkv", "100.0", "●"]


def test_a_difference_is_from_the_same_capacity_everywhere(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.5] * 12)
    put(tmp_path, "docqa_mini", "pyramidkv", 64, [0.25] * 12)
    put(tmp_path, "docqa_mini", "pyramidkv+bacon", 64, [0.75] * 12)
    assert "75.0 ↑50.0" in analysis.table(tmp_path)
    tidy = {row["method"]: row for row in rows(entries(tmp_path))}
    assert tidy["pyramidkv+bacon"]["delta"] == 0.5
    assert (tidy["pyramidkv+bacon"]["base"], tidy["pyramidkv+bacon"]["base_window"]) == ("pyramidkv", 16)
    assert [tidy[plain][key] for plain in ("snapkv", "pyramidkv") for key in ("delta", "base")] == [None] * 4
    assert "is compared with" not in analysis.table(tmp_path)


def test_a_refresh_is_compared_with_its_method_without_it(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.25] * 12)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [0.5] * 12)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [0.75] * 12, refresh="rcr")
    put(tmp_path, "chartqa_mini", "snapkv+bacon", 64, [0.5] * 12, metric="relaxed_overall")
    tidy = {row["method"]: row for row in rows(entries(tmp_path))}
    assert tidy["snapkv+bacon refresh=rcr"]["base"] == "snapkv+bacon"
    assert tidy["snapkv+bacon refresh=rcr"]["delta"] == 0.25
    assert (
        "kvbench run model=toy benchmark=chartqa_mini method=snapkv+bacon budget=64 refresh=rcr"
        f" method.window=16 limit=12 store={tmp_path}" in analysis.table(tmp_path)
    )


def test_a_base_with_another_window_is_said(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.5] * 12)
    put(tmp_path, "docqa_mini", "snapkv+ecokv", 64, [0.75] * 12, window=4)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [0.75] * 12)
    said = [line for line in analysis.table(tmp_path).splitlines() if "is compared with" in line]
    assert said == ["snapkv+ecokv (window 4) is compared with snapkv (window 16): the nearest there is."]
    (row,) = [row for row in rows(entries(tmp_path)) if row["method"] == "snapkv+ecokv"]
    assert (row["window"], row["base"], row["base_window"], row["delta"]) == (4, "snapkv", 16, 0.25)


def test_differences_are_from_a_method_of_ones_choice(tmp_path):
    put(tmp_path, "docqa_mini", "fullkv", None, [1.0] * 12)
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.5] * 12)
    put(tmp_path, "docqa_mini", "snapkv+mixkv", 64, [0.25] * 12)
    put(tmp_path, "docqa_mini", "adakv+bacon", 64, [0.75] * 12)

    def shown(against):
        text = analysis.table(tmp_path, against=against)
        return text, {line.split()[0]: line.split()[2:] for line in text.splitlines() if "kv" in line[:8]}

    text, rows = shown("fullkv")
    assert [rows[name] for name in ("snapkv", "snapkv+mixkv")] == [["↓50.0*"], ["↓75.0*"]]
    assert rows["adakv+bacon"][0].startswith("↓25.0*") and "difference from fullkv, [95 %" in text
    assert "is compared with" not in text  # fullkv has no window to differ in
    text, rows = shown("snapkv+mixkv")
    assert (rows["snapkv"], rows["snapkv+mixkv"], rows["fullkv"]) == (["↑25.0*"], [], [])
    assert "from snapkv+mixkv at the same budget" in text
    with pytest.raises(UserError, match="no cell of 'snapkv[+]mixk': did you mean snapkv[+]mixkv"):
        analysis.table(tmp_path, against="snapkv+mixk")


def test_the_interval_is_percentile_or_bca(tmp_path):
    values = np.random.default_rng(0).exponential(1, 30) ** 2
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.0] * 30)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, values.tolist())
    found = {}
    for method in METHODS:
        table = build(entries(tmp_path), "toy", tmp_path, Choice(interval=method))
        (value,) = table.grid["snapkv+bacon"].values()
        found[method] = (value.gap.low, value.gap.high)
        assert found[method] == pytest.approx(interval(values, method=method))
    assert found["BCa"][1] > found["percentile"][1] + 0.01  # a long tail to the right
    assert "95 % interval, BCa bootstrap of pages or pictures]" in analysis.table(tmp_path, interval="BCa")
    with pytest.raises(UserError, match="t, percentile, BCa"):
        analysis.table(tmp_path, interval="normal")


def test_exact_tests_are_shown_with_their_family(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.0] * 10)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [1.0] * 8 + [0.0] * 2)
    put(tmp_path, "docqa_mini", "snapkv+ecokv", 64, [1.0] * 5 + [0.0] * 5)
    put(tmp_path, "docqa_mini", "snapkv+mixkv", 64, [0.5] * 10)
    text = analysis.table(tmp_path, exact=True, width=200)
    below = {line.split()[0]: after for line, after in pairwise(text.splitlines()) if line[:6] == "snapkv"}
    # 8 and 5 of as many discordant pairs: p = 2 / 2^8 and 2 / 2^5, a family of two.
    assert below["snapkv+bacon"].split() == ["p", ".008,", ".016"]
    assert below["snapkv+ecokv"].split() == ["p", ".062,", ".062"]
    assert "p" not in below["snapkv+mixkv"].split()  # halves are not right or wrong
    assert "Holm over one family: every such difference of this model and metric" in text
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(analysis.table(tmp_path, "csv")))}
    assert float(rows["snapkv+bacon"]["p_holm"]) == 4 / 2**8 and rows["snapkv+mixkv"]["p"] == ""


def test_holes_show_the_command_that_fills_them(tmp_path):
    grid(tmp_path)
    put(tmp_path, "chartqa_mini", "snapkv", 64, [1.0, 0.0], metric="relaxed_overall")
    text = analysis.table(tmp_path)
    assert lines(text, "snapkv+bacon")[0].split()[-1] == "—"
    commands = [line.strip() for line in text.splitlines() if line.startswith("  kvbench")]
    assert commands == [
        f"kvbench run model=toy benchmark=chartqa_mini method=fullkv limit=2 store={tmp_path}",
        f"kvbench run model=toy benchmark=chartqa_mini method=snapkv+bacon budget=64 method.window=16 limit=2"
        f" store={tmp_path}",
    ]


def test_variants_of_a_method_are_told_apart(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.0] * 12)
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.5] * 12, window=4)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [0.75] * 12, window=4, radius=3)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [1.0] * 12, window=4, radius=5)
    found = entries(tmp_path)
    assert sorted(settings([entry.cell for entry in found]).values()) == [
        "radius=3",
        "radius=5",
        "window=16",
        "window=4",
    ]
    text = analysis.table(tmp_path)
    assert lines(text, "snapkv+bacon radius=5")[0].split()[2:4] == ["100.0", "↑50.0*●"]  # from window=4
    assert lines(text, "snapkv+bacon radius=3")[0].split()[2:4] == ["75.0", "↑25.0*"]


def test_realised_entries_are_shown_when_they_vary(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [1.0] * 12)
    put(tmp_path, "docqa_mini", "adakv", 64, [1.0] * 12, kept=90)
    put(tmp_path, "chartqa_mini", "adakv", 64, [1.0] * 12, metric="relaxed_overall", kept=70)
    text = analysis.table(tmp_path)
    assert "realised entries per head, snapkv: 64: 64.0\n" in text
    assert "realised entries per head, adakv: 64: 70.0 to 90.0 (heads 70 to 90)\n" in text


@pytest.mark.parametrize("n", [0, 1])
def test_no_sample_and_one_sample(tmp_path, n):
    grid(tmp_path, 2)
    put(tmp_path, "chartqa_mini", "snapkv", 64, [1.0] * n, metric="relaxed_overall")
    put(tmp_path, "chartqa_mini", "snapkv+bacon", 64, [0.5] * n, metric="relaxed_overall")
    text = analysis.table(tmp_path, width=100)
    flat = " ".join(text.split())
    assert ("chartqa_mini: pages or pictures asked about: 1; fewer than 5 have no" in flat) == (n == 1)
    assert "docqa_mini: pages or pictures asked about: 2; fewer than 5 have no interval and no mark" in flat
    assert ("↓50.0" in text and "no interval" in text) if n else "n/a" in text
    assert "●" not in text.split("difference")[0].split("ChartQA")[1].split("docqa_mini:")[0]


def test_the_footer_says_what_chance_would_mark_and_where_values_touch_the_ceiling(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [0.0] * 12)
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [1.0] * 11 + [0.6])
    put(tmp_path, "docqa_mini", "snapkv+ecokv", 64, [0.0, 1.0] * 6)
    put(tmp_path, "docqa_mini", "snapkv+mixkv", 64, [0.0] * 11 + [1.0])
    for format in ("text", "markdown", "latex", "html"):
        flat = " ".join(re.sub(r"[\\{}]", "", analysis.table(tmp_path, format)).split())
        assert "2 of 3 differences; chance alone would mark less than one (5 %)" in flat
        assert "docqa_mini: 1 value above 95 % of the maximum" in flat
        assert "12; intervals from fewer than 20 are rough" in flat
    many = [Value(None, gap=Difference(0, -1, 1, 9, 9)) for _ in range(90)]
    table = Table("m", [], {"x": dict(enumerate(many))})
    assert chance(table) == ["* 0 of 90 differences; chance alone would mark about 4 (5 %)."]
    assert chance(Table("m", [], {})) == []


def test_scores_that_are_not_numbers_are_said(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [1.0, math.nan, 0.0])
    put(tmp_path, "docqa_mini", "snapkv+bacon", 64, [1.0, 1.0, 0.0])
    text = analysis.table(tmp_path)
    assert lines(text, "snapkv ")[0].split() == ["snapkv", "n/a"]
    assert "snapkv on docqa_mini: anls is not a number for 1 samples." in text
    assert [row["delta"] for row in rows(entries(tmp_path))] == [None, None]


def test_a_missing_metric_shows_its_reason_and_no_command(tmp_path):
    put(
        tmp_path,
        "caption_mini",
        "fullkv",
        None,
        [1.0] * 12,
        metric="fidelity_rougeL",
        warnings=["No Java here."],
    )
    put(
        tmp_path,
        "caption_mini",
        "snapkv",
        64,
        [0.5] * 12,
        metric="fidelity_rougeL",
        warnings=["No Java here."],
    )
    text = analysis.table(tmp_path)
    assert lines(text, "snapkv")[0].split() == ["snapkv", "n/a"]
    assert text.count("No Java here.") == 1 and "kvbench run" not in text


def test_documents_show_fidelity_agreement_and_divergence(tmp_path):
    for method, budget, text in (
        ("fullkv", None, "a b c d"),
        ("snapkv", 64, "a b c"),
        ("snapkv+bacon", 64, "a b c d"),
    ):
        texts = dict.fromkeys(range(12), text)
        fakestore.add(tmp_path, benchmark_cfg("documents_mini"), method_cfg(method), budget, texts)
    assert analysis.score_store(tmp_path) == []
    out = analysis.table(tmp_path, width=60)
    for heading in ("fidelity", "same answer", "first divergence"):
        assert f"Documents (mini) {heading}" in out
    assert [line.split()[1] for line in lines(out, "snapkv ")] == ["0.857", "0.000", "5.0"]
    assert [line.split()[1] for line in lines(out, "fullkv ")] == ["1.000", "1.000", "7.0"]
    assert "[+0.14,+0.14]" in out  # of fractions, bounds have two digits


def test_fullkv_is_a_hole_where_figures_need_it_and_no_row_where_they_do_not(tmp_path):
    put(tmp_path / "pages", "docqa_mini", "snapkv", 64, [1.0, 0.0])
    text = analysis.table(tmp_path / "pages")
    assert "fullkv" not in text and "—" not in text
    texts = dict.fromkeys(range(12), "a b c")
    fakestore.add(tmp_path / "text", benchmark_cfg("documents_mini"), method_cfg("snapkv"), 64, texts)
    analysis.score_store(tmp_path / "text")
    text = analysis.table(tmp_path / "text", width=80)
    assert lines(text, "fullkv ")[0].split()[1:] == ["—"] * 2
    assert "  kvbench run model=toy benchmark=documents_mini method=fullkv limit=12 store=" in text


def test_wide_grids_go_into_blocks_and_keep_every_value(tmp_path):
    for name, metric in (
        ("docqa_mini", "anls"),
        ("chartqa_mini", "relaxed_overall"),
        ("textqa_mini", "exact_match"),
    ):
        for budget in (128, 64, 32):
            put(tmp_path, name, "snapkv", budget, [budget / 1000] * 12, metric=metric)
    narrow, wide = analysis.table(tmp_path, width=60), analysis.table(tmp_path, width=200)
    for text, blocks in ((narrow, 3), (wide, 1)):
        assert len(lines(text, "method")) == blocks
        assert re.findall(r"12\.8|6\.4|3\.2", text) == ["12.8", "6.4", "3.2"] * 3
    # The papers' order: documents first, then scene text, then charts.
    assert wide.index("DocQA") < wide.index("TextQA") < wide.index("ChartQA")


def test_markdown_and_csv(tmp_path):
    grid(tmp_path)
    markdown = analysis.table(tmp_path, "markdown")
    (row,) = [line for line in markdown.splitlines() if line.startswith("| snapkv+bacon")]
    assert "**95.0** ↑45.0\\*<br>[" in row and row.count("|") == 4
    (head,) = [line for line in markdown.splitlines() if line.startswith("| method")]
    assert head == "| method | DocQA (mini) ANLS 128 | DocQA (mini) ANLS 64 |"
    table = list(csv.DictReader(io.StringIO(analysis.table(tmp_path, "csv"))))
    bacon = [row for row in table if row["method"] == "snapkv+bacon" and row["budget"] == "64"]
    assert [(row["value"], row["best"], row["n"]) for row in bacon] == [("0.95", "1", "20")]
    assert float(bacon[0]["delta"]) == pytest.approx(0.45)
    assert sum(row["method"] == "fullkv" for row in table) == 1
    with pytest.raises(UserError, match="text, markdown, csv, latex, html"):
        analysis.table(tmp_path, "pdf")


def test_the_table_agrees_with_the_tidy_results(tmp_path):
    grid(tmp_path)
    found = entries(tmp_path)
    table = build(found, "toy", tmp_path)
    tidy = {(row["method"], row["budget"]): row for row in rows(found)}
    for column, value in table.grid["snapkv+bacon"].items():
        row = tidy["snapkv+bacon", column.budget]
        assert (value.value, value.gap.delta, value.gap.low, value.gap.high) == (
            row["value"],
            row["delta"],
            row["ci_low"],
            row["ci_high"],
        )


def test_several_models_stand_apart(tmp_path):
    grid(tmp_path)
    put(tmp_path, "docqa_mini", "snapkv", 64, [1.0] * 12, model="other")
    text = analysis.table(tmp_path)
    assert text.splitlines()[0] == "other" and "\ntoy" in text


def test_some_benchmarks_alone(tmp_path, capsys):
    for name in ("docqa_mini", "textqa_mini"):
        put(tmp_path, name, "snapkv", 64, [1.0] * 6)
    put(tmp_path, "docqa_mini", "adakv", 64, [1.0] * 6)
    shown = analysis.table(tmp_path, benchmarks=("textqa_mini",))
    assert "TextQA" in shown and "DocQA" not in shown and "adakv" not in shown and "—" not in shown
    assert cli.main(["table", f"store={tmp_path}", "benchmark=textqa_mni"]) == 2
    assert "did you mean textqa_mini" in capsys.readouterr().err


def test_a_drawing_methods_seed_is_said_once():
    made = [
        Cell.from_config(
            str(seed),
            {
                "model": {"name": "toy"},
                "benchmark": {"name": "docqa_mini"},
                "method": {**method_cfg("snapkv"), "score": {"name": "random", "seed": seed}},
                "budget": 64,
                "seed": seed,
                "prompt": "default",
            },
            Path("store"),
        )
        for seed in (0, 1)
    ]
    assert sorted(settings(made).values()) == ["seed=0", "seed=1"]


def test_a_hole_below_the_window_is_named_and_has_no_command(tmp_path):
    put(tmp_path, "docqa_mini", "snapkv", 64, [1.0] * 6, window=32)
    put(tmp_path, "docqa_mini", "adakv", 64, [1.0] * 6, window=8)
    put(tmp_path, "docqa_mini", "adakv", 24, [1.0] * 6, window=8)
    shown = analysis.table(tmp_path, width=200)
    assert "snapkv: no cell at budget 24, which is not above its window of 32" in shown
    assert "to fill" not in shown
