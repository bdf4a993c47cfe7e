"""The experiments of the papers' tables: exactly the cells whose values the tables print."""

from __future__ import annotations

import pytest
import yaml

from kvbench import cli, compose, paths, plan, reference
from kvbench.errors import UserError

# Tables that no grid of answers gives: memory and time of synthetic inputs are measured by `kvbench bench`.
MEASURED = {("ecokv", "5")}
TABLES = [
    (paper, table)
    for paper in ("bacon", "ecokv")
    for table in reference.about()[paper]
    if (paper, table) not in MEASURED
]
MORE = {
    # Settings that the sweep of an axis adds to those printed, cells per benchmark.
    "bacon_table5": 3 * 4,  # one term alone, and none
    "bacon_table10": 3 * 4,
    "bacon_table11": 3 * 4 * 2,
    "ecokv_table9": 2 * 3,  # ecokv with a window of 32
}


@pytest.fixture(scope="module", autouse=True)
def one_session():
    """Configs composed once for all tests."""
    with compose.session():
        yield


def experiments(paper, table):
    """Names of the experiment files of one table."""
    stems = [path.stem for path in (paths.conf_dir() / "experiment").glob(f"{paper}_table{table}*.yaml")]
    return sorted(stem for stem in stems if not stem.removeprefix(f"{paper}_table{table}")[:1].isdigit())


def params(name):
    document = yaml.safe_load((paths.conf_dir() / "experiment" / f"{name}.yaml").read_text("utf-8"))
    return document["hydra"]["sweeper"]["params"]


def listed(value):
    return [part.strip() for part in str(value).split(",")]


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_names_what_the_table_has(paper, table):
    found = experiments(paper, table)
    assert found
    # An average is worked out from its tasks; latency is measured on synthetic inputs.
    rows = [r for r in reference.rows(paper, table) if r.benchmark not in ("longbench", "synthetic")]
    for field in ("model", "benchmark", "method"):
        named = {name for experiment in found for name in listed(params(experiment)[field])}
        assert named == {getattr(row, field) for row in rows}
    budgets = {int(budget) for experiment in found for budget in listed(params(experiment)["budget"])}
    assert budgets == {row.budget for row in rows} - {None}


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_has_the_cells_of_the_table(paper, table):
    found = experiments(paper, table)
    rows = [r for r in reference.rows(paper, table) if r.benchmark not in ("longbench", "synthetic")]
    printed = {(r.model, r.benchmark, r.method, r.budget, r.setting) for r in rows}
    benchmarks = {(row.model, row.benchmark) for row in rows}
    counted = sum(plan.count_cells([f"experiment={name}", "profile=paper"]) for name in found)
    more = MORE.get(found[0], 0) * len(benchmarks)
    assert counted == len(printed) + more


def test_counting_agrees_with_planning():
    for name in ("bacon_table1", "bacon_table7", "ecokv_table9"):
        overrides = [f"experiment={name}"]
        assert plan.count_cells(overrides) == sum(len(job.cells) for job in plan.jobs(overrides))


def test_a_job_of_table_1_has_37_cells():
    jobs = plan.jobs(
        ["experiment=bacon_table1", "profile=paper", "model=qwen2_vl_7b", "benchmark=docvqa,textvqa"]
    )
    assert [len(job.cells) for job in jobs] == [37, 37]


def test_excluded_methods_are_left_out_and_named(capsys):
    overrides = ["experiment=bacon_table1", "benchmark=docqa_mini", "exclude=['embedded/sparsemm*']"]
    (job,) = plan.jobs(overrides)
    assert len(job.cells) == 28 and not any(cell.method.startswith("sparsemm") for cell in job.cells)
    assert plan.count_cells(overrides) == 28
    assert cli.main(["plan", *overrides]) == 0
    assert "kvbench calibrate heads model=embedded" in capsys.readouterr().out
    with pytest.raises(UserError, match="exclude leaves no method for embedded"):
        plan.jobs([*overrides, "method=sparsemm"])


def test_every_option_axis_changes_cells():
    """An option that no method has is refused; one that changed nothing would pass unnoticed."""
    for paper, table in TABLES:
        for name in experiments(paper, table):
            axes = [key for key in params(name) if key.startswith("method.")]
            whole = plan.count_cells([f"experiment={name}", "profile=paper"])
            for axis in axes:
                first = listed(params(name)[axis])[0]
                assert plan.count_cells([f"experiment={name}", "profile=paper", f"{axis}={first}"]) < whole


def test_what_has_no_small_counterpart_says_so(capsys):
    assert cli.main(["plan", "experiment=bacon_table3", "profile=embedded"]) == 2
    assert "embedded" in capsys.readouterr().err


def test_list_names_experiments_with_their_cells(capsys):
    assert cli.main(["list", "experiments"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    with compose.session():
        assert set(lines) == set(compose.choices("experiment"))
    assert "148 embedded, 650 paper" in lines["bacon_table1"]
    assert "25 paper" in lines["bacon_table3"] and "embedded" not in lines["bacon_table3"]
