"""A store's results stand beside the published values of the same cells, in every format."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from html.parser import HTMLParser
from types import SimpleNamespace

import latexcheck
import numpy as np
import pytest
from scipy import stats
from test_table import put

from kvbench import cli, reference, report
from kvbench.analysis import published, tables
from kvbench.analysis.results import Entry, entries
from kvbench.analysis.tables import beside, beside_paper
from kvbench.analysis.tables.beside import PARTS
from kvbench.benchmarks.base import Scores
from kvbench.commands import table
from kvbench.errors import UserError
from kvbench.methods import registry
from kvbench.methods.method import parse
from kvbench.planning import experiments, plan
from kvbench.planning.config import benchmark_file
from kvbench.report.page import render

MODEL = "llava_next_mistral_7b"


def cell(store, benchmark, method, budget, values, **settings):
    """A cell with all options of its capacity and score, as the planner stores them."""
    capacity, score = (
        {option.name: option.default for option in registry.options(kind, name)}
        for kind, name in zip(("capacity", "score"), parse(method), strict=True)
    )
    usual = {"window": 32, "capacity": capacity, **score}
    return put(store, benchmark, method, budget, values, **usual | settings)


def bacon(store, values, **settings):
    return cell(store, "docvqa", "snapkv+bacon", 64, values, model=MODEL, **settings)


def measured(store, name):
    """What a store has of a paper's table: {(method, setting): Beside}."""
    found = beside.beside(entries(store), experiments.find(name))
    return {(p.published.method, p.published.setting): p for p in found if p.measured}


@pytest.fixture
def some(tmp_path):
    """Two cells of Table 1 on 20 samples: uncompressed, and BACON at 64."""
    put(tmp_path, "docvqa", "fullkv", None, [1.0, 0.0] * 10, model=MODEL)
    bacon(tmp_path, [1.0, 1.0, 0.0, 0.0] * 5)
    return tmp_path


@pytest.fixture
def command(monkeypatch, capsys):
    """The ``kvbench table`` command; the made-up scores have no answers to be scored again."""
    monkeypatch.setattr(table, "scored", lambda store: 0)

    def run(*words):
        code = cli.main(["table", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_measured_paper_and_difference(some):
    found = measured(some, "bacon_table1")
    assert {key: pair.published.value for key, pair in found.items()} == {
        ("fullkv", ""): "62.7",
        ("snapkv+bacon", ""): "53.9",
    }
    pair = found["snapkv+bacon", ""]
    assert pair.measured.value == 50 and pair.measured.n == 20 and pair.measured.low < 50 < pair.measured.high
    assert pair.difference == pytest.approx(-3.9) and not pair.significant


def test_a_published_value_outside_the_interval_is_marked(tmp_path):
    bacon(tmp_path, [1.0] * 20)
    assert measured(tmp_path, "bacon_table1")["snapkv+bacon", ""].significant
    assert "+46.1*" in beside_paper(tmp_path, experiments.find("bacon_table1"))


def test_options_tell_cells_apart(tmp_path):
    bacon(tmp_path, [1.0] * 4)
    bacon(tmp_path, [0.0] * 4, radius=3)
    found = {
        setting: pair.measured.value for (_, setting), pair in measured(tmp_path, "bacon_table7").items()
    }
    assert found == {"radius=3": 0.0, "radius=5": 100.0}
    assert [p.measured.value for p in measured(tmp_path, "bacon_table1").values()] == [100.0]


def test_another_window_is_another_cell(tmp_path):
    bacon(tmp_path, [1.0] * 4, window=16)
    with pytest.raises(UserError, match="no cell has the model, benchmark, method, budget and options"):
        measured(tmp_path, "bacon_table1")


@pytest.mark.parametrize(
    "name", ["bacon_table1", "bacon_table7", "bacon_table12", "ecokv_table3", "ecokv_table11"]
)
def test_every_published_value_is_measured_by_one_planned_cell(name):
    experiment = experiments.find(name)
    words = ["model=llava_next_mistral_7b", "benchmark=docvqa"] if name == "bacon_table1" else []
    found = []
    for job in plan.jobs([f"experiment={name}", "profile=paper", *words]):
        metrics = dict.fromkeys(benchmark_file(job.config["benchmark"]["name"])["metrics"], 0.5)
        found += [Entry(cell, "", Scores(1, metrics), None) for cell in job.cells]
    asked = [row for row in experiment.published() if not words or (row.model, row.benchmark) == ONE]
    matched = published.pairs(asked, found)
    assert len(asked) > 5 and all(pair.measured for pair in matched)
    assert len({pair.entry.cell.digest for pair in matched}) == len(asked)


ONE = (MODEL, "docvqa")


def test_random_weights_and_drawn_data_stand_beside_nothing(tmp_path):
    for number, (part, key, value) in enumerate(
        [("model", "weights", "random"), ("benchmark", "data", "micro"), ("benchmark", "subset", "first_20")]
    ):
        store = tmp_path / str(number)
        made = bacon(store, [1.0] * 20)
        file = made.folder / "cells" / f"{made.digest}.json"
        config = json.loads(file.read_text())
        config[part][key] = value
        file.write_text(json.dumps(config))
        if key == "subset":
            out = beside_paper(store, experiments.find("bacon_table1"))
            assert "docvqa: subset=first_20 here; the paper names no such subset." in out
        else:
            with pytest.raises(UserError, match="random weights or of micro data"):
                beside_paper(store, experiments.find("bacon_table1"))


def test_an_average_is_that_of_its_tasks_and_resamples_each(tmp_path):
    rows = [row for row in reference.rows("bacon", "4") if row.method == "snapkv" and row.budget == 512]
    tasks = [row.benchmark for row in rows if row.metric == "score"]
    rng = np.random.default_rng(0)
    values = {name: rng.random(20 + number) for number, name in enumerate(tasks)}
    for name in tasks[1:]:
        cell(tmp_path, name, "snapkv", 512, values[name], metric="score", model=rows[0].model)
    average = next(row for row in rows if row.metric == "average")

    def found():
        return next(p for p in published.pairs(rows, entries(tmp_path)) if p.published == average)

    assert found().measured is None  # a task is missing
    cell(tmp_path, tasks[0], "snapkv", 512, values[tasks[0]], metric="score", model=rows[0].model)
    got = found().measured
    assert got.value == pytest.approx(100 * np.mean([series.mean() for series in values.values()]))
    draws = [series[rng.integers(0, len(series), (4000, len(series)))].mean(1) for series in values.values()]
    low, high = 100 * np.percentile(np.mean(draws, axis=0), [2.5, 97.5])
    assert (got.low, got.high) == (pytest.approx(low, abs=0.4), pytest.approx(high, abs=0.4))
    assert got.n == sum(map(len, values.values()))


def test_kinds_of_one_cell_share_their_pictures_draws():
    """Opposite values on the same pictures: their average is constant, so its interval is a point."""
    values = {"text": {0: 1.0, 1: 0.0, 2: 0.0, 3: 1.0, 4: 1.0}}
    values["icon"] = {10 + index: 1 - value for index, value in values["text"].items()}
    pages = {index: f"p{index % 10}" for index in range(15)}
    scores = SimpleNamespace(per_sample=values, clusters=pages)
    cell = SimpleNamespace(benchmark="fake_qa", config={"benchmark": {"name": "fake_qa"}})
    entry = SimpleNamespace(cell=cell, scores=scores)
    line = [
        published.Beside(SimpleNamespace(metric=kind, unit="%"), SimpleNamespace(clusters=5), entry)
        for kind in values
    ]
    low, high = published._average_intervals([line])[:, 0]
    assert low == pytest.approx(50) and high == pytest.approx(50)


def test_averages_have_the_freedom_of_welch_and_satterthwaite():
    """Two kinds of one benchmark have the smaller one's freedom; a second benchmark adds its own."""
    rng = np.random.default_rng(4)
    short, long, other = rng.normal(0, 1, 6), rng.normal(0, 0.2, 14), rng.normal(0, 0.7, 9)

    def entry(name, kinds):
        values = {kind: dict(enumerate(series)) for kind, series in kinds.items()}
        scores = SimpleNamespace(per_sample=values, clusters={index: str(index) for index in range(20)})
        cell = SimpleNamespace(benchmark=name, config={"benchmark": {"name": name}})
        return SimpleNamespace(cell=cell, scores=scores)

    one, two = entry("fake_a", {"short": short, "long": long}), entry("fake_b", {"other": other})
    line = [
        published.Beside(SimpleNamespace(metric=kind, unit="%"), SimpleNamespace(clusters=6), of)
        for kind, of in (("short", one), ("long", one), ("other", two))
    ]
    low, high = published._average_intervals([line])[:, 0]

    def errors(series):
        n = len(series)
        return np.pad((series - series.mean()) / n / math.sqrt(1 - 1 / n), (0, 14 - n))

    first = (((errors(short) + errors(long)) / 3) ** 2).sum()
    second = ((errors(other) / 3) ** 2).sum()
    df = (first + second) ** 2 / (first**2 / 5 + second**2 / 8)
    middle = np.mean([short.mean(), long.mean(), other.mean()])
    half = stats.t.ppf(0.975, df) * math.sqrt(first + second)
    assert (low, high) == (pytest.approx(100 * (middle - half)), pytest.approx(100 * (middle + half)))


class TestCommand:
    def test_text(self, some, command):
        code, out, err = command("bacon_table1", f"store={some}")
        assert code == 0 and err == "" and MODEL in out.splitlines()[0]
        full = [line.split() for line in out.splitlines() if line.startswith("fullkv")]
        assert full[0][:6] == ["fullkv", "50.0", "[26.0,", "74.0]", "62.7", "-12.7"]
        assert full[-1] == ["fullkv", "—", "0.704"] and max(map(len, out.splitlines()[:40])) <= 100
        assert re.search(r"snapkv\+bacon .*50\.0  \[26\.0, 74\.0\] +53\.9 +-3\.9", out)
        assert re.search(r"adakv .*— +48\.7|adakv .*—", out)  # the published value beside the hole
        assert "docvqa: 20 samples" in out and "realised entries per head, snapkv+bacon: 64: 64.0" in out
        for name in ("measured", "95 % CI", "paper", "difference", "DocVQA ANLS [%], 64"):
            assert name in out

    def test_holes_show_the_published_value_and_a_command_that_fills_them(self, some, command):
        out = command("bacon_table1", f"store={some}")[1]
        commands = [
            line.strip().removeprefix("kvbench run ") for line in out.splitlines() if line[:2] == "  "
        ]
        commands = [shlex.split(line) for line in commands if line.startswith("experiment=")]
        mine, others = [words for words in commands if f"model={MODEL}" in words], commands[-1]
        assert {word for words in mine for word in words if word.startswith("limit=")} == {"limit=20"}
        cells = [cell for words in mine for job in plan.jobs(words) for cell in job.cells]
        names = {(cell.benchmark, cell.method, cell.budget) for cell in cells}
        holes = [r for r in reference.rows("bacon", "1") if r.model == MODEL and r.method != "fullkv"]
        assert names >= {(row.benchmark, row.method, row.budget) for row in holes}
        assert "model=qwen2_vl_7b,internvl3_8b,qwen3_vl_30b_a3b" in others

    def test_csv_round_trips(self, some, command):
        rows = list(
            csv.DictReader(io.StringIO(command("bacon_table1", f"store={some}", "--format", "csv")[1]))
        )
        assert len(rows) == len(reference.rows("bacon", "1"))
        shown = {(r["model"], r["benchmark"], r["method"], r["budget"]): r for r in rows}
        assert len(shown) == len(rows)
        for row in reference.rows("bacon", "1"):
            key = (row.model, row.benchmark, row.method, "" if row.budget is None else str(row.budget))
            assert shown[key]["published"] == row.value
        found = shown[MODEL, "docvqa", "snapkv+bacon", "64"]
        pair = measured(some, "bacon_table1")["snapkv+bacon", ""]
        assert [float(found[k]) for k in ("measured", "ci_low", "ci_high", "difference")] == [
            pair.measured.value,
            pair.measured.low,
            pair.measured.high,
            pair.difference,
        ]
        assert (found["n"], found["kept_mean"], found["digest"]) == ("20", "64.0", pair.entry.cell.digest)
        assert shown[MODEL, "docvqa", "snapkv", "64"]["measured"] == ""

    def test_markdown(self, some, command):
        out = command("bacon_table1", f"store={some}", "--format", "markdown")[1]
        lines = out.splitlines()
        at = lines.index("#### DocVQA ANLS [%], 64") + 2
        assert lines[at] == f"| method | {' | '.join(PARTS)} |"
        (row,) = [line for line in lines[at:] if line.startswith("| snapkv+bacon |")][:1]
        assert row == "| snapkv+bacon | 50.0 | [26.0, 74.0] | 53.9 | -3.9 |"
        table_lines = [line for line in lines if line.startswith("|")]
        assert {line.count("|") for line in table_lines} == {6}
        assert out.count("```") == 4 and "kvbench run experiment=bacon_table1" in out

    def test_latex(self, some, command):
        out = command("bacon_table1", f"store={some}", "--format", "latex")[1]
        latexcheck.check(out)
        assert r"50.0 & {[}26.0, 74.0] & 53.9 & $-$3.9" in out and out.count(r"\begin{table}") == 8
        assert r"\multicolumn{4}{c}{DocVQA ANLS {[}\%], 64}" in out

    def test_html(self, some, command):
        out = command("bacon_table1", f"store={some}", "--format", "html")[1]

        class Reader(HTMLParser):
            def __init__(self):
                super().__init__()
                self.rows = []

            def handle_starttag(self, tag, attributes):
                if tag == "tr":
                    self.rows.append(0)
                if tag in ("td", "th"):
                    self.rows[-1] += int(dict(attributes).get("colspan", 1))

        reader = Reader()
        reader.feed(out)
        width = 1 + 4 * 3 * 5
        assert reader.rows == [width, width - 1] + [width] * (len(reader.rows) - 2)
        assert '<td data-sort="50">50.0</td><td>[26.0, 74.0]</td><td data-sort="53.9">53.9</td>' in out

    def test_another_model_is_one_sentence_and_the_plain_table(self, tmp_path, command):
        put(tmp_path, "docqa_mini", "snapkv", 64, [1.0] * 12, model="embedded")
        code, out, err = command("bacon_table1", f"store={tmp_path}")
        assert code == 0 and out.startswith("embedded\n") and "100.0" in out
        assert err.count("\n") == 1 and "the paper's model is qwen2_vl_7b or" in err
        assert "kvbench run experiment=bacon_table1 profile=paper" in err
        code, out, err = command("bacon_table1", f"store={tmp_path}", "--format", "csv")
        assert code == 2 and out == "" and "the paper's model is" in err  # never a CSV of other columns

    def test_an_experiment_that_is_no_table_of_a_paper_has_its_own(self, tmp_path, command):
        put(tmp_path, "docqa_mini", "snapkv", 64, [1.0] * 12, model="embedded")
        assert command("table1", f"store={tmp_path}")[1:] == command(f"store={tmp_path}")[1:]
        assert command("rcr_textcaps", f"store={tmp_path}")[0] == 0

    def test_memory_and_times_are_not_answers(self, tmp_path, command):
        cell(tmp_path, "textvqa", "snapkv", 64, [1.0] * 12, model="qwen2_vl_7b", metric="exact_match")
        err = command("ecokv_table10", f"store={tmp_path}")[2]
        assert "kvbench bench efficiency" in err and err.count("\n") == 1
        bacon(tmp_path, [1.0] * 12)
        out = command("bacon_table5", f"store={tmp_path}")[1]
        assert "latency and peak_memory of the paper's table: `kvbench bench efficiency`" in out

    def test_contradictions_of_the_paper_are_flagged(self, tmp_path, command):
        row = next(row for row in reference.rows("ecokv", "1") if row.flag)
        window = 4 if row.method.endswith("ecokv") else 32
        settings = {"metric": row.metric, "model": row.model, "window": window}
        cell(tmp_path, row.benchmark, row.method, row.budget, [0.5] * 12, **settings)
        out = command("ecokv_table1", f"store={tmp_path}")[1]
        assert f"{row.value} !" in out and " ".join(f"! {row.method}, {row.benchmark}".split()) in out

    def test_the_experiments_own_store_is_usual(self, tmp_path, command, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, _, err = command("bacon_table1")
        assert code == 2 and "call `kvbench run experiment=bacon_table1 profile=paper` first" in err
        bacon(tmp_path / "runs" / "bacon_table1", [1.0] * 12)
        assert "+46.1*" in command("bacon_table1")[1]

    def test_a_name_that_does_not_exist(self, tmp_path, command):
        code, _, err = command("bacon_tabel1")
        assert code == 2 and "did you mean bacon_table1" in err and err.count("\n") == 1
        assert command(tmp_path / "none")[0] == 2
        assert command("bacon_table1", f"store={tmp_path}", "--format", "pdf")[0] == 2
        assert command("bacon_table1", f"store={tmp_path}", "--interval", "normal")[0] == 2

    def test_differences_of_ones_own_choice_are_the_plain_table(self, some, command):
        out = command("bacon_table1", f"store={some}", "--against", "fullkv")[1]
        assert "difference from fullkv," in out and "→0.0" in out


def test_the_report_has_every_table_that_the_store_has_a_value_of(some):
    found = tables.published(entries(some), some)
    names = [name.split(":")[0] for name, _ in found]
    # BACON at its usual options is a row of the tables of its terms, its depth and its radius too, and the
    # uncompressed model one of ECOKV's.
    assert sorted(names) == [*(f"bacon table {number}" for number in (1, 5, 6, 7)), "ecokv table 1"]
    assert found[0][0].split(": ")[1] == "1 of 15 values measured"
    (main,) = [(name, html) for name, html in found if name.startswith("bacon table 1:")]
    assert "2 of 650 values measured" in main[0] and '<td data-sort="53.9">53.9</td>' in main[1]
    page = render([some], report.Options(), [], "key")
    assert page.count("values measured</summary>") == 5 and 'href="#published-1"' in page


def test_a_cell_measured_twice_is_refused(tmp_path):
    bacon(tmp_path, [1.0] * 4)
    twin = bacon(tmp_path / "twin", [1.0] * 4)
    found = [*entries(tmp_path), *entries(tmp_path / "twin")]
    with pytest.raises(UserError, match=f"several cells .*{twin.digest}"):
        published.pairs(reference.rows("bacon", "1"), found)


def test_one_sample_and_no_number(tmp_path):
    bacon(tmp_path, [1.0])
    out = beside_paper(tmp_path, experiments.find("bacon_table1"))
    assert "no interval" in out and "fewer than 5 have no interval" in " ".join(out.split())
    bacon(tmp_path / "nan", [1.0, math.nan])
    out = beside_paper(tmp_path / "nan", experiments.find("bacon_table1"))
    assert "n/a" in out and "anls is not a number for 1 samples" in out


def test_no_difference_is_drawn_against_values_of_a_subset(tmp_path):
    row = next(
        r
        for r in reference.rows("bacon", "1")
        if (r.model, r.benchmark, r.method) == (MODEL, "chartqa", "snapkv")
    )
    cell(tmp_path, "chartqa", "snapkv", row.budget, [1.0] * 12, metric=row.metric, model=MODEL)
    out = beside_paper(tmp_path, experiments.find("bacon_table1"))
    assert "chartqa: subset not printed (multiples of 0.2, as of 500 questions" in " ".join(out.split())
    (pair,) = [p for p in measured(tmp_path, "bacon_table1").values()]
    assert pair.measured and not pair.significant and math.isnan(pair.difference)
