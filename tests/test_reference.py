"""The published values: complete, consistent with what is printed beside them, under names that exist."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections import Counter, defaultdict
from decimal import Decimal

import pytest

from kvbench import cli, reference
from kvbench.methods import registry
from kvbench.methods.method import parse
from kvbench.planning import compose
from kvbench.planning.config import benchmark_file
from kvbench.reference import show

FULL, CAPACITIES, SCORES = (
    1,
    4,
    3,
)  # fullkv; snapkv, pyramidkv, adakv, sparsemm; plain, mixkv, the paper's own
LONGBENCH = 16 + 1  # tasks and their average

# Values of a table: rows x budgets x columns.
COUNTS = {
    # Two models with SparseMM, two without.
    ("bacon", "1"): 2 * 5 * (FULL + CAPACITIES * SCORES * 3) + 2 * 5 * (FULL + 3 * SCORES * 3),
    ("bacon", "2"): 5 * (FULL + CAPACITIES * SCORES * 3),
    ("bacon", "3"): 7 * (FULL + CAPACITIES * SCORES * 2),
    ("bacon", "4"): LONGBENCH * (FULL + 3 * SCORES * 2),
    ("bacon", "5"): 3 * 5 * 5 + 2 * (FULL + CAPACITIES * SCORES),
    ("bacon", "6"): 5 * 3,
    ("bacon", "7"): 5 * 3,
    ("bacon", "8"): LONGBENCH * (FULL + 3 * SCORES * 2),
    ("bacon", "9"): 3 * (FULL + 3 * SCORES),
    ("bacon", "10"): 3 * 5 * 5,
    ("bacon", "11"): 3 * 5 * 5 * 2,
    ("bacon", "12"): 2 * 4 * (FULL + 3 * SCORES * 2),
    ("bacon", "13"): 4 * (FULL + 3 * SCORES * 2),
    ("ecokv", "1"): 2 * 5 * (FULL + CAPACITIES * SCORES * 3),
    ("ecokv", "2"): 2 * SCORES * 3,
    ("ecokv", "3"): 2 * 3 * 3,
    ("ecokv", "4"): 4 * 3,
    ("ecokv", "5"): 3 * (FULL + 2 * SCORES),
    ("ecokv", "7"): 2 * 5,
    ("ecokv", "8"): 2 * 3 * 6,
    ("ecokv", "9"): 2 * (2 + 2 + 1) * 3,
    ("ecokv", "10"): 3 * (FULL + 2 * SCORES),
    ("ecokv", "11"): 2 * 2 * 3,
    ("ecokv", "12"): 2 * 3,
}
ROWS = reference.rows()


def place(row, **changed):
    """What tells values apart."""
    names = ("paper", "table", "model", "benchmark", "metric", "method", "budget", "setting")
    return tuple(changed.get(name, getattr(row, name)) for name in names)


BY_PLACE = {place(row): row for row in ROWS}


def find(paper, table, benchmark, method, budget=None, **more):
    """The one value that fits."""
    found = [
        row
        for row in reference.rows(paper, table)
        if (row.benchmark, row.method, row.budget) == (benchmark, method, budget)
        and all(getattr(row, name) == value for name, value in more.items())
    ]
    assert len(found) == 1
    return found[0].value


def test_every_table_has_all_its_values():
    counted = Counter((row.paper, row.table) for row in ROWS if row.paper != "rcr")
    assert counted == COUNTS
    assert all(
        set(reference.about()[paper]) == {t for p, t in COUNTS if p == paper} for paper in ("bacon", "ecokv")
    )


def test_no_value_stands_twice():
    assert len(BY_PLACE) == len(ROWS)


def test_fullkv_alone_is_the_upper_bound_and_has_no_budget():
    for row in ROWS:
        assert (row.budget is None) == (
            row.method == "fullkv" or row.metric in ("latency", "run_time") or _unbudgeted(row)
        ), row
        if row.paper != "rcr":
            assert row.is_upper_bound == (row.method == "fullkv"), row


def _unbudgeted(row):
    return (row.paper, row.table, row.metric) == ("bacon", "5", "peak_memory")


def test_printed_differences_are_differences_of_the_values():
    """BACON prints differences from the capacity alone, ECOKV from MixKV."""
    checked = wrong = 0
    for row in ROWS:
        if not row.delta:
            continue
        capacity = row.method.partition("+")[0]
        base = BY_PLACE[place(row, method=capacity if row.paper == "bacon" else f"{capacity}+mixkv")]
        same = Decimal(row.value) - Decimal(base.value) == Decimal(row.delta)
        assert same or "printed difference" in row.flag, row
        assert not (same and "printed difference" in row.flag), row
        checked, wrong = checked + 1, wrong + (not same)
    assert checked == (4 + 4 + 3 + 3) * 5 * 3 + 2 * 4 * 5 * 3 and wrong == 1


@pytest.mark.parametrize(("benchmark", "parts", "places"), [("longbench", 16, 2), ("screenspot", 6, 1)])
def test_printed_averages_are_means_of_the_values(benchmark, parts, places):
    half = Decimal(5).scaleb(-places - 1)
    averages = [row for row in ROWS if (row.benchmark, row.metric) == (benchmark, "average")]
    assert averages
    for row in averages:
        group = ("paper", "table", "model", "method", "budget", "setting")
        values = [
            Decimal(other.value)
            for other in ROWS
            if other.metric != "average" and all(getattr(other, name) == getattr(row, name) for name in group)
        ]
        assert len(values) == parts
        near = abs(sum(values) / parts - Decimal(row.value)) <= half
        assert near != ("average" in row.flag), row


DEFAULTS = {"evidence": "true", "coherence": "true", "persistence": "true", "depth": "4", "radius": "5"}
DEFAULTS |= {"normalise": "minmax", "centroid": "all", "redundancy": "euclidean"}


def test_values_printed_in_several_tables_agree():
    same = defaultdict(list)
    for row in ROWS:
        if row.paper == "rcr" or row.unit in ("GB", "s", "GPU-h", "") or "prompt" in row.options:
            continue
        usual = DEFAULTS | {"window": "4" if row.method.endswith("+ecokv") else "32"}
        setting = " ".join(f"{key}={value}" for key, value in row.options.items() if usual[key] != value)
        same[place(row, table="", setting=setting)].append(row)
    several = [found for found in same.values() if len(found) > 1]
    assert len(several) > 100
    for found in several:
        agree = len({row.number for row in found}) == 1
        for row in found:
            assert agree != ("prints" in row.flag), row


def test_what_the_text_says_of_the_tables():
    gains = [
        100 * (row.number / BY_PLACE[place(row, method=row.method.partition("+")[0])].number - 1)
        for row in reference.rows("bacon", 1)
        if row.method.endswith("+bacon") and row.benchmark != "textcaps"
    ]
    assert f"{max(gains):.1f}" == "30.9"  # the abstract
    # BACON, appendix C.2
    for method, value in (("snapkv", "61.50"), ("snapkv+bacon", "61.80"), ("adakv+bacon", "62.10")):
        assert find("bacon", 9, "hrbench_8k", method, 128) == value
    assert find("bacon", 9, "videomme", "sparsemm+bacon", 1024) == "53.00"
    assert find("bacon", 9, "videomme", "fullkv") == "53.30"
    # ECOKV, section 6.3: a small window helps; the average cache of Qwen2-VL-7B
    assert find("ecokv", 8, "chartqa", "snapkv+ecokv", 64, setting="window=32") == "79.1"
    assert find("ecokv", 5, "synthetic", "fullkv", metric="cache_memory") == "0.438"
    assert f"{8192 * 28 * 4 * 2 * 128 * 2 / 2**30:.3f}" == "0.438"  # positions, layers, heads, K and V, bytes


def test_methods_and_settings_are_kvbenchs_own():
    words = {"prompt", "input_length", "new_tokens", "samples", "range", "over", "drift"}
    for row in ROWS:
        name, _, refresh = row.method.partition(" refresh=")
        parsed = parse(name)
        kinds = [("capacity", parsed[0]), ("score", parsed[1])] if parsed else []
        kinds += [("refresh", refresh)] if refresh else []
        options = {option.name for kind, of in kinds for option in registry.options(kind, of)}
        assert set(row.options) <= options | words | ({"window"} if parsed else set()), row


def test_models_benchmarks_and_metrics_are_kvbenchs_own():
    with compose.session():
        models, benchmarks = set(compose.choices("model")), set(compose.choices("benchmark"))
    assert {row.model for row in ROWS} - {""} <= models
    assert {row.benchmark for row in ROWS} - {"", "synthetic", "longbench"} <= benchmarks
    # Figures of the text, means over several metrics, memory and time have no metric of a benchmark.
    scored = (row for row in ROWS if row.paper != "rcr" and row.metric != "average")
    for benchmark, metric in {(row.benchmark, row.metric) for row in scored if row.unit in ("%", "1")}:
        assert metric in benchmark_file(benchmark)["metrics"], benchmark


def command(capsys, *arguments):
    code = cli.main(["reference", *arguments])
    return code, *capsys.readouterr()


def test_the_command_prints_eleven_columns(capsys):
    code, out, _ = command(capsys, "--format", "csv")
    lines = list(csv.reader(io.StringIO(out)))
    assert code == 0 and len(lines) == len(ROWS) + 1
    assert ",".join(lines[0]) == "paper,table,model,benchmark,metric,method,budget,setting,value,unit,subset"
    assert all(len(line) == 11 for line in lines)
    assert ["bacon", "1", "qwen2_vl_7b", "docvqa", "anls", "fullkv", "", "", "93.7", "%", ""] in lines
    assert [
        "bacon",
        "7",
        "llava_next_mistral_7b",
        "docvqa",
        "anls",
        "snapkv+bacon",
        "64",
        "radius=3",
        "53.7",
        "%",
        "",
    ] in lines


def test_the_command_prints_a_table_by_default(capsys):
    code, out, _ = command(capsys, "--paper", "ecokv", "--table", "1")
    assert code == 0 and out.startswith("### ecokv table 1")
    assert "| qwen2_vl_7b | snapkv+ecokv | 64 | 81.8 (+13.9) | 74.8 (+8.8) |" in out
    assert "1.250 (+0.181) [1]" in out and "[1] qwen2_vl_7b textcaps pyramidkv+ecokv 128: the printed" in out


def test_every_value_stands_in_the_tables(capsys):
    _, out, _ = command(capsys)
    shown = Counter(
        cell.strip().split(" ")[0]
        for line in out.splitlines()
        if line.startswith("| ")
        for cell in line.split("|")
    )
    assert not Counter(row.value for row in ROWS) - shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--paper", "bakon"], "there is no paper 'bakon': did you mean bacon?"),
        (["--paper", "ecokv", "--table", "6"], "there is no table '6' of ecokv: choose one of 1, "),
        (["--table", "99"], "there is no table '99' of any paper"),
        (["--format", "tex"], "invalid choice: 'tex' (choose from 'text', 'markdown'"),
        (["--papers", "bacon"], "has no option '--papers': did you mean --paper"),
    ],
)
def test_mistakes_are_one_sentence(capsys, arguments, said):
    code, out, err = command(capsys, *arguments)
    assert code == 2 and not out and said in err and len(err.splitlines()) == 1


def test_needs_neither_torch_nor_pandas():
    script = (
        "import sys; from kvbench import cli; cli.main(['reference', '--format', 'csv']);"
        "assert not {'torch', 'pandas', 'hydra'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_the_arithmetic_of_printed_shares():
    from kvbench.reference import sizes

    assert sizes.fits("33.3", 3) and not sizes.fits("33.4", 3) and sizes.fits("71.3", 2500)
    assert sizes.step(["70.0", "69.6", "66.2", "70.2", "67.2", "67.2"]) == (0.2, 2**-5)
    assert sizes.step(["34.8", "34.8", "34.8"])[1] == 1 == sizes.step(["70.0", "69.6"])[1]


def test_columns_that_are_of_a_subset_are_known():
    """BACON's ChartQA of two models: 54 of 54 values of table 1 are multiples of 0.2; ECOKV's are whole."""
    from kvbench.reference import sizes

    found = {(r.paper, r.model, r.benchmark) for r in ROWS if sizes.subset(r)}
    assert found == {
        ("bacon", "qwen2_vl_7b", "chartqa"),
        ("bacon", "llava_next_mistral_7b", "chartqa"),
        ("bacon", "qwen2_vl_7b", "screenspot"),  # 4.6 is no share of 140
    }
    mine = [
        row
        for row in reference.rows("bacon", 1)
        if sizes.subset(row) and row.method.partition("+")[0] in ("snapkv", "adakv", "sparsemm")
    ]
    assert len(mine) == 54 and all(round(10 * row.number) % 2 == 0 for row in mine)


def test_a_table_with_a_digit_of_zeros_is_read_without_it():
    """BACON's table 9 shows 51.70 where its text says 51.7, as 465 of 900 are; table 12 has other columns."""
    from kvbench.reference import sizes

    assert sizes._padded() == {("bacon", "9")} and not sizes.fits("51.70", 900) and sizes.fits("51.7", 900)
    assert not any(sizes.subset(row) for row in reference.rows("bacon", 9))
    mine = [row for row in reference.rows("bacon", 12) if row.benchmark == "chartqa"]
    assert mine and all("multiples of 0.1" in sizes.subset(row) for row in mine)


def test_sizes_are_of_printed_columns():
    from kvbench.reference import sizes

    assert set(sizes.WHOLE) <= {(row.benchmark, row.metric) for row in ROWS}
    assert sum(n for (name, _), n in sizes.WHOLE.items() if name == "screenspot") == 1272  # the whole set


def test_the_commands_output_flags_columns_of_a_subset(capsys):
    assert cli.main(["reference", "--paper", "bacon", "--table", "1"]) == 0
    shown = capsys.readouterr().out
    marked = [row for row in reference.rows("bacon", 1) if "†" in show._cell(row, [])]
    assert shown.count("†") == len(marked) + 2 == 2 * 37 + 2
    assert "- † qwen2_vl_7b chartqa relaxed_overall: subset not printed (multiples of 0." in shown
    assert cli.main(["reference", "--paper", "bacon", "--table", "1", "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sum("multiples of" in line["subset"] for line in lines) == len(marked)
    assert all(line["subset"] == "" for line in lines if line["benchmark"] != "chartqa")
