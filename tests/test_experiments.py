"""The experiments of the papers' tables: exactly the cells whose values the tables print."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import yaml

from kvbench import cli, paths, reference
from kvbench.errors import UserError
from kvbench.planning import compose, plan, sizes

# Tables that no grid of answers gives: memory and time of synthetic inputs are measured by `kvbench bench`.
MEASURED = {("ecokv", "5"), ("ecokv", "7")}
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
    counted = sum(int(sizes.size(name, "paper")) for name in found)
    more = MORE.get(found[0], 0) * len(benchmarks)
    assert counted == len(printed) + more


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("bacon_table1", "embedded"),
        ("bacon_table3", "paper"),
        ("bacon_table7", "embedded"),
        ("bacon_table10", "paper"),
        ("claims_diversity", ""),
        ("documents", ""),
        ("ecokv_table9", "embedded"),
        ("rcr_cost", "embedded"),
        ("rcr_threshold_sweep", "embedded"),
        ("table1", "embedded"),
    ],
)
def test_sizes_read_from_yaml_are_those_of_the_plan(name, profile):
    jobs = plan.jobs([f"experiment={name}"] + [f"profile={profile}"] * bool(profile))
    assert int(sizes.size(name, profile)) == sum(len(job.cells) for job in jobs)


def test_a_job_of_table_1_has_37_cells():
    jobs = plan.jobs(
        ["experiment=bacon_table1", "profile=paper", "model=qwen2_vl_7b", "benchmark=docvqa,textvqa"]
    )
    assert [len(job.cells) for job in jobs] == [37, 37]


def test_excluded_methods_are_left_out_and_named(capsys):
    overrides = ["experiment=bacon_table1", "benchmark=docqa_mini", "exclude=['embedded/sparsemm*']"]
    (job,) = plan.jobs(overrides)
    assert len(job.cells) == 28 and not any(cell.method.startswith("sparsemm") for cell in job.cells)
    _, axes = sizes.read("bacon_table1", "embedded")
    assert sizes.cells({**axes, "benchmark": ["docqa_mini"]}, ["embedded/sparsemm*"]) == 28
    assert cli.main(["plan", *overrides]) == 0
    assert "kvbench calibrate heads model=embedded" in capsys.readouterr().out
    with pytest.raises(UserError, match="exclude leaves no method for embedded"):
        plan.jobs([*overrides, "method=sparsemm"])


def test_every_option_axis_changes_cells():
    """An option that no method has is refused; one that changed nothing would pass unnoticed."""
    for paper, table in TABLES:
        for name in experiments(paper, table):
            _, axes = sizes.read(name, "paper")
            for key in (key for key in axes if key.startswith("method.")):
                assert sizes.cells({**axes, key: axes[key][:1]}) < sizes.cells(axes)


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
    assert "120 prompts embedded, 400 prompts paper" in lines["ecokv_figure5"]


QWEN, LLAVA = "qwen2_vl_7b", "llava_next_mistral_7b"
PAGES = "docqa_mini,textqa_mini,chartqa_mini"
# What the papers say of their figures: model, benchmarks, prompts of each.
OBSERVED = {
    "ecokv_figure1": (QWEN, "chartqa"),
    "ecokv_figure2": (QWEN, "chartqa"),
    "ecokv_figure4": (QWEN, "chartqa"),
    "ecokv_figure5": (QWEN, "docvqa,ocrbench,textvqa,chartqa"),
    "ecokv_figure6": (QWEN, "docvqa,ocrbench,textvqa,textcaps"),
    "ecokv_figure7": (QWEN, "ocrbench,chartqa"),
    "ecokv_figure8": (LLAVA, "ocrbench,chartqa"),
    "bacon_figure2": (QWEN, PAGES),
    "bacon_figure3": (QWEN, PAGES),
}
OVERLAYS = ("bacon_figure1", "bacon_figure2a", *(f"bacon_figure{n}" for n in (5, 6, 7, 8)))


def test_every_figure_that_needs_a_run_has_an_experiment():
    stems = {path.stem for path in (paths.conf_dir() / "experiment").glob("*_figure*.yaml")}
    assert stems == {*OBSERVED, *OVERLAYS, "ecokv_figure3"}


@pytest.mark.parametrize("name", OBSERVED)
def test_observes_what_the_figure_shows(name):
    model, benchmarks = OBSERVED[name]
    jobs = plan.jobs([f"experiment={name}", "profile=paper"])
    found = [(job.config["model"]["name"], job.config["benchmark"]["name"]) for job in jobs]
    assert found == [(model, benchmark) for benchmark in benchmarks.split(",")]
    drawn = name.startswith("bacon")  # pages with known evidence, whole sets of 100
    subset = None if drawn else "random_100"
    assert all(job.config["benchmark"].get("subset") == subset for job in jobs)
    for profile, limit, of in (("paper", 100, len(jobs)), ("embedded", 40, 3)):
        overrides = [f"experiment={name}", f"profile={profile}"]
        jobs = plan.jobs(overrides)
        assert {(job.config["observe"], job.limit, job.config["store"]) for job in jobs} == {
            (True, limit, f"runs/{name}")
        }
        assert len(jobs) == of and sizes.size(name, profile) == f"{limit * of} prompts"


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlays_compare_two_selections_of_the_same_pages(name):
    for profile in ("paper", "embedded"):
        (job,) = plan.jobs([f"experiment={name}", f"profile={profile}"])
        assert len(job.cells) == 2 and job.limit == 4 and not job.config["observe"]
        if name == "bacon_figure2a":
            assert len({cell.budget for cell in job.cells}) == 2
        else:
            assert [cell.method for cell in job.cells] == ["snapkv", "snapkv+bacon"]


def test_figure_3_is_a_map_of_both_weights_at_one_window():
    for profile, window in (("paper", 32), ("embedded", 16)):
        (job,) = plan.jobs(["experiment=ecokv_figure3", f"profile={profile}"])
        scores = {
            (c.method, c.config["method"]["score"]["alpha"], c.config["method"]["score"]["beta"])
            for c in job.cells
        }
        assert len(scores) == len(job.cells) == 2 * 6 * 6
        assert {cell.config["method"]["window"] for cell in job.cells} == {window}


def test_ecokvs_paper_profile_is_float16_and_its_questions_are_drawn():
    """Table 6 (fp16) and appendix B.3 (100 randomly sampled questions); the embedded model stays as it is."""
    ((job,), embedded) = (
        plan.jobs(["experiment=ecokv_table10"]),
        plan.jobs(["experiment=ecokv_table12", "profile=embedded"]),
    )
    assert job.config["model"]["dtype"] == "float16" and job.config["benchmark"]["subset"] == "random_100"
    assert plan.jobs(["experiment=ecokv_table1", "profile=paper"])[0].config["model"]["dtype"] == "float16"
    assert {job.config["model"]["dtype"] for job in embedded} == {"float32"}
    assert plan.jobs(["experiment=bacon_table6", "profile=paper"])[0].config["model"]["dtype"] == "bfloat16"


def test_plan_says_that_head_scores_are_missing(capsys):
    words = ["benchmark=docvqa", "benchmark.data=micro", "budget=64", "limit=2"]
    assert cli.main(["plan", "model=qwen2_vl_7b", "method=sparsemm+mixkv", *words]) == 0
    assert "model qwen2_vl_7b lacks" in capsys.readouterr().out
    assert cli.main(["plan", "model=embedded", "method=sparsemm", "benchmark=docqa_mini", "budget=64"]) == 0
    assert cli.main(["plan", "model=qwen2_vl_7b", "method=snapkv", *words]) == 0
    assert "head scores" not in capsys.readouterr().out


TOY = [
    "model.weights=random",
    "model.size=toy",
    "benchmark=docvqa",
    "benchmark.data=micro",
    "budget=64",
    "limit=1",
]


def test_run_names_missing_head_scores_before_it_loads_a_model(tmp_path, capsys, monkeypatch):
    from kvbench import models

    monkeypatch.setattr(models, "load", lambda cfg: pytest.fail("the model was loaded"))
    assert cli.main(["run", "model=qwen2_vl_7b", "method=sparsemm", *TOY, f"store={tmp_path}/s"]) == 2
    assert "model qwen2_vl_7b lacks" in capsys.readouterr().err


def test_models_of_one_sweep_have_their_own_head_scores_in_one_folder(tmp_path, capsys):
    """The name of a cell holds what the model's own file says, not where the folder is."""
    names = ("qwen2_vl_7b", "llava_next_mistral_7b")
    folder = tmp_path / "heads"
    folder.mkdir()
    for name in names:
        scores = {f"{layer}-{head}": [1.0 + layer] for layer in range(4) for head in range(6)}
        (folder / f"{name}-heads.json").write_text(json.dumps(scores | {"0-0": [len(name)]}))
    words = [f"model={','.join(names)}", "method=fullkv,sparsemm", *TOY]
    one = plan.jobs([*words, f"model.head_scores={folder}", "store=x"], multirun=True)
    of_files = [job.config["model"]["head_scores"] for job in one]
    assert of_files == [str(folder / f"{name}-heads.json") for name in names]
    single = [*words[1:], f"model={names[0]}", f"model.head_scores={of_files[0]}", "store=x"]
    (alone,) = plan.jobs(single, multirun=True)
    assert [cell.digest for cell in alone.cells] == [cell.digest for cell in one[0].cells]
    store = f"store={tmp_path}/s"
    assert cli.main(["run", "-m", *words, f"model.head_scores={folder}", store]) == 0
    capsys.readouterr()
    assert cli.main(["table", store]) == 0
    shown = capsys.readouterr().out
    assert shown.count("sparsemm") >= 2 and "—" not in shown
    (folder / f"{names[1]}-heads.json").unlink()
    assert cli.main(["run", "-m", *words, f"model.head_scores={folder}", f"store={tmp_path}/t"]) == 2
    assert f"model {names[1]} lacks" in capsys.readouterr().err


def test_rcrs_development_pictures_are_none_of_its_test():
    """DetailCaps has a row a picture, so other rows are other pictures."""
    from kvbench.benchmarks import subsets

    def rows(name):
        job = plan.jobs([f"experiment={name}", "profile=paper"])[0]
        return set(subsets.indices(job.config["benchmark"]["subset"], range(4870), name))

    development, test = rows("rcr_development"), rows("rcr_detailcaps")
    assert (len(development), len(test)) == (100, 300) and not development & test


@pytest.fixture(scope="module")
def checking():
    """scripts/experiments_check.py as a module."""
    place = Path(__file__).parents[1] / "scripts" / "experiments_check.py"
    spec = importlib.util.spec_from_file_location("experiments_check", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOME = ["model=qwen2_vl_7b,llava_next_mistral_7b", "benchmark=textvqa", "budget=64"]


@pytest.mark.parametrize(("name", "some", "said"), [
    ("bacon_table1", [*SOME, "method=fullkv,snapkv+bacon,sparsemm,sparsemm+bacon"], "8 cells"),
    ("rcr_oracle_vqa", [*SOME, "refresh=none,rcr"], "6 cells, drift"),
    ("ecokv_figure4", [], "2 prompts, "),
])  # fmt: skip
def test_an_experiment_runs_to_a_table_without_a_hole(checking, tmp_path, name, some, said):
    """A part of the grid: scripts/experiments_check.py, which this calls, runs the whole of every one."""
    assert checking.check(name, tmp_path, some).startswith(said)


def test_a_hole_is_found(checking, tmp_path):
    """A cell that is planned and not run, and a printed value without its cell."""
    few = ["model=qwen2_vl_7b", "benchmark=docvqa,textvqa", "method=snapkv+bacon", "method.score.depth=0,2"]
    checking.check("bacon_table6", tmp_path, few)
    found = checking.entries(tmp_path / "bacon_table6")
    jobs = plan.jobs(["experiment=bacon_table6", "profile=paper", *few])
    with pytest.raises(checking.Incomplete, match="not scored"):
        checking.complete(jobs, found, tmp_path / "bacon_table6")
    with pytest.raises(checking.Incomplete, match="15 of 15 printed values find no cell"):
        checking.beside(found, checking.experiments.find("bacon_table6"))
