"""Overrides become jobs and cells: which axes, which digests, which mistakes."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, replace

import pytest
import yaml
from fakes import command

from kvbench import paths
from kvbench.errors import UserError
from kvbench.planning import compose, config, plan, specs


@pytest.fixture(autouse=True, scope="module")
def one_hydra():
    """Start Hydra once for all tests of this file."""
    with compose.session():
        yield


def jobs(*overrides: str, multirun: bool = True) -> list[plan.Job]:
    return plan.jobs(command("run", *overrides)[1:], multirun)


def cells(*overrides: str) -> list[tuple[str, int | None]]:
    (job,) = jobs(*overrides)
    return [(cell.method, cell.budget) for cell in job.cells]


def digests(*overrides: str) -> list[str]:
    return [cell.digest for job in jobs(*overrides) for cell in job.cells]


def mistake(*overrides: str, multirun: bool = True) -> str:
    with pytest.raises(UserError) as caught:
        jobs(*overrides, multirun=multirun)
    sentence = str(caught.value)
    assert "\n" not in sentence and len(sentence) < 700
    return sentence


MODEL_IDENTITY = frozenset(
    {
        "name",
        "adapter",
        "id",
        "revision",
        "weights",
        "size",
        "architecture",
        "dtype",
        "attention",
        "system",
        "system_prompt",
        "chat",
        "max_length",
        "head_scores",
        "min_pixels",
        "max_pixels",
        "video_min_pixels",
        "video_max_pixels",
        "max_tiles",
        "interleave",
    }
)
BENCHMARK_IDENTITY = frozenset(
    {
        "name",
        "kind",
        "task",
        "data",
        "revision",
        "max_new_tokens",
        "until",
        "prompt",
        "wording",
        "score",
        "suffix",
    }
    | {"chat_template", "max_prompt_tokens", "page_pixels"}
    | {"subset", "frames", "video_folder", "video_column", "config"}
)
IDENTITY = {"model", "benchmark", "method", "budget", "seed", "prompt"}


def test_every_field_is_identity_or_runtime():
    for field in fields(config.RunConfig):
        kind = field.metadata.get("kind")
        assert kind in ("identity", "runtime"), (
            f"say in config.py whether {field.name} is identity or runtime"
        )
        assert field.default is not MISSING or field.default_factory is not MISSING


@pytest.mark.parametrize("group, identity, runtime", [
    ("model", MODEL_IDENTITY, config.MODEL_RUNTIME),
    ("benchmark", BENCHMARK_IDENTITY, config.BENCHMARK_RUNTIME),
])  # fmt: skip
def test_every_key_of_a_group_is_identity_or_runtime(group, identity, runtime):
    assert not identity & runtime
    for path in sorted((paths.conf_dir() / group).glob("*.yaml")):
        unknown = set(yaml.safe_load(path.read_text())) - {"defaults"} - identity - runtime
        assert not unknown, f"say in config.py whether {unknown} of {path.name} is identity or runtime"


def test_identity_fields_change_the_digest_and_runtime_fields_do_not():
    base = ["method=snapkv+bacon", "budget=64"]
    (digest,) = digests(*base)
    same = ["limit=3", "store=/tmp/elsewhere", "retries=4", "fail_fast=true", "model.device=cuda"]
    same += [
        "shards=2 shard=1",
        "sync=0",
        "decode.compile=true",
        "launcher=joblib launcher.jobs=3",
        "launcher=slurm launcher.partition=x",
    ]
    same += [
        "benchmark.default_limit=9",
        "benchmark.title=x",
        "model.title=y",
        "method.score.radius=5",
        "seed=0",
    ]
    for override in same:
        assert digests(*base, *override.split()) == [digest], override
    changes = ["seed=1", "model.dtype=bfloat16", "benchmark.max_new_tokens=5", "method.window=8", "budget=65"]
    changes += ["method.score.radius=3", "method=snapkv", "benchmark=fake_text"]
    for override in changes:
        assert digests(*base, override) != [digest], override
    assert digests(*base, "method.score.rho=2") == digests(*base, "method.score.rho=2.0")


def test_digest_covers_every_part_of_the_identity():
    (job,) = jobs("method=snapkv", "budget=64")
    found = set(job.cells[0].config)
    assert found == IDENTITY | {"code"}, "a refresh is a part of the method"
    (job,) = jobs("method=fullkv")
    assert "code" not in job.cells[0].config, "no method's source decides what keeps everything"


def test_cells_are_the_combinations_and_fullkv_has_no_budget():
    expected = [
        ("fullkv", None),
        ("snapkv", 128),
        ("snapkv", 64),
        ("snapkv+bacon", 128),
        ("snapkv+bacon", 64),
    ]
    assert cells("method=fullkv,snapkv,snapkv+bacon", "budget=128,64") == expected
    assert cells("method=fullkv", "budget=128,64,32") == [("fullkv", None)]


def test_options_are_axes_of_the_methods_that_have_them():
    names = "method=fullkv,snapkv,snapkv+bacon"
    assert cells(names, "budget=64", "method.score.radius=3,5,7") == [
        ("fullkv", None), ("snapkv", 64), *[("snapkv+bacon", 64)] * 3
    ]  # fmt: skip
    (job,) = jobs(names, "budget=64", "method.score.radius=3,5", "method.window=16,8")
    assert sorted((cell.method, cell.config["method"]["window"]) for cell in job.cells[1:]) == sorted(
        [("snapkv", 16), ("snapkv", 8)] + [("snapkv+bacon", 16), ("snapkv+bacon", 8)] * 2
    )


def test_job_axes_are_jobs_that_share_the_cells():
    found = jobs(
        "benchmark=fake_qa,fake_text", "seed=0,1", "method=fullkv,snapkv", "budget=64,32", "method.window=16"
    )
    assert [(job.config["benchmark"]["name"], job.config["seed"]) for job in found] == [
        ("fake_qa", 0), ("fake_qa", 1), ("fake_text", 0), ("fake_text", 1)
    ]  # fmt: skip
    assert {len(job.cells) for job in found} == {3}
    assert len({cell.digest for job in found for cell in job.cells}) == 12


def test_a_sweep_takes_keys_that_the_default_model_and_benchmark_lack():
    words = ["model=qwen2_vl_7b,qwen2_5_vl_7b", "benchmark=vatex,nextqa", "method=snapkv"]
    found = plan.jobs([*words, "model.max_pixels=401408", "benchmark.frames=8"], multirun=True)
    assert [(j.config["model"]["max_pixels"], j.config["benchmark"]["frames"]) for j in found] == [
        (401408, 8)
    ] * 4
    with pytest.raises(UserError, match="unknown key 'model.max_pixels'"):
        plan.jobs(["model=qwen2_vl_7b,embedded", "model.max_pixels=401408"], multirun=True)
    with pytest.raises(UserError, match="model.max_pixels takes one value in a sweep"):
        plan.jobs([*words, "model.max_pixels=401408,802816"], multirun=True)


def test_shards_share_cells_and_split_samples():
    first, second = jobs("shards=2", "shard=0,1", "method=fullkv")
    assert first.cells[0].digest == second.cells[0].digest
    assert first.journal != second.journal and first.folder == second.folder
    order = [5, 0, 4, 1, 3, 2]
    assert (first.own(order), second.own(order)) == ([3, 4, 5], [0, 1, 2])
    (few,) = jobs("shards=2", "shard=0", "limit=3", "method=fullkv")
    assert few.own(order) == [4, 5], "a larger limit takes no sample away from a shard"
    every = jobs("shards=3", "benchmark=fake_qa,fake_text", "method=fullkv")
    assert [job.config["shard"] for job in every] == [0, 1, 2, 0, 1, 2], "without a shard, all of them"


def test_any_capacity_composes_with_any_score():
    (job,) = jobs("method=adakv+ecokv", "budget=64", multirun=False)
    method = job.cells[0].config["method"]
    assert method["name"] == "adakv+ecokv" and method["window"] == 4
    assert (
        method["capacity"]["name"] == "adakv"
        and method["score"]["name"] == "ecokv"
        and method["score"]["alpha"] == 0.8
    )
    assert len(cells("method=glob(snapkv+*)", "budget=64")) > 10


def test_every_built_method_equals_its_spec():
    from kvbench import methods

    (job,) = jobs("method=fullkv,snapkv,pyramidkv+mixkv,adakv+ecokv,sparsemm+bacon", "budget=64")
    for cell in job.cells:
        method = methods.build(cell.config["method"], cell.budget)
        assert method.budget == cell.budget
        assert method.full == (cell.method == "fullkv")
        if not method.full:
            assert method.window == cell.config["method"]["window"]


def test_experiments_list_their_axes_and_the_command_line_wins():
    found = plan.jobs(command("plan", "experiment=table1", "benchmark=fake_qa", "budget=64")[1:])
    expected = {(capacity + score, 64) for capacity in ("snapkv", "pyramidkv", "adakv", "sparsemm")
                for score in ("", "+mixkv", "+ecokv", "+bacon")}  # fmt: skip
    assert {(cell.method, cell.budget) for cell in found[0].cells} == {("fullkv", None), *expected}
    assert len(found[0].cells) == 17
    windows = {cell.method: cell.config["method"]["window"] for cell in found[0].cells[1:]}
    assert set(windows.values()) == {32, 4}, "a score's own window, else the usual one"
    assert windows["adakv+ecokv"] == 4


def test_a_model_may_name_its_window():
    (job,) = plan.jobs(["model=embedded", "benchmark=docqa_mini", "method=snapkv+bacon", "budget=64"])
    assert job.cells[0].config["method"]["window"] == 16
    (job,) = plan.jobs(["model=embedded", "benchmark=docqa_mini", "method=snapkv+ecokv", "budget=64"])
    assert job.cells[0].config["method"]["window"] == 4


def test_shipped_experiments_compose():
    for cells, overrides in (
        (49, ["experiment=table1"]),
        (49, ["experiment=table1", "profile=paper"]),
        (7, ["experiment=documents"]),
    ):
        assert all(len(job.cells) == cells for job in plan.jobs(overrides)), overrides


def test_a_big_grid_is_composed_by_its_parts_not_by_its_cells(monkeypatch):
    names = [
        f"{c}{s}"
        for c in ("snapkv", "pyramidkv", "adakv", "sparsemm")
        for s in ("", "+mixkv", "+ecokv", "+bacon")
    ]
    grid = ["method=fullkv," + ",".join(names), "budget=128,64,32", "method.window=16"]
    specs._composed.clear()
    calls = []
    whole = plan.compose.compose
    monkeypatch.setattr(
        plan.compose, "compose", lambda *args, **more: calls.append(args) or whole(*args, **more)
    )
    found = jobs(*grid, "benchmark=fake_qa,fake_text", "seed=0,1")
    assert {len(job.cells) for job in found} == {49}
    assert len(calls) < 49  # of 8 jobs with 49 cells each


@pytest.mark.parametrize("overrides, words", [
    (["model=embeded"], "unknown model 'embeded': did you mean embedded"),
    (["benchmark=docqa_mni"], "unknown benchmark 'docqa_mni': did you mean docqa_mini"),
    (["benchmark=docqa_mini,docqa_mni"], "unknown benchmark 'docqa_mni'"),
    (["method=snapvk"], "unknown method 'snapvk': did you mean snapkv"),
    (["method=snapkv,snapkv+bakon"], "unknown method 'snapkv.bakon': did you mean snapkv.bacon"),
    (["experiment=tabel1"], "unknown experiment 'tabel1': did you mean table1"),
    (["limits=3"], "unknown key 'limits': did you mean limit"),
    (["benchmark.max_new_token=3"], "did you mean benchmark.max_new_tokens"),
    (["methd=snapkv"], "unknown key 'methd': did you mean method"),
    (["method=snapkv+bacon", "method.score.radiu=3"], "did you mean method.score.radius"),
    (["method=snapkv", "method.score.radius=3"], "unknown key 'method.score.radius'"),
    (["method=fullkv", "method.window=3"], "keeps everything"),
    (["method=snapkv+bacon", "method.score.radius=x"], "radius"),
    (["method=snapkv+bacon", "method.score.variant=best"], "paper"),
    (["method=snapkv", "method.score.kernel=4"], "odd"),
    (["method.score=bacon"], "method=CAPACITY\\+SCORE"),
    (["+method.window=3"], "method.window=VALUE"),
    (["budget=0"], "budget must be a whole number of at least 1, not 0"),
    (["budget=-3"], "budget must be a whole number of at least 1, not -3"),
    (["budget=1.5"], "budget must be a whole number of at least 1, not 1.5"),
    (["budget=many"], "budget must be a whole number of at least 1, not 'many'"),
    (["budget=true"], "budget must be a whole number"),
    (["budget=16"], "budget 16 must be larger than the window of 32"),
    (["budget=64,32", "method.window=32"], "budget 32 must be larger than the window of 32"),
    (["method.window=0"], "method.window must be a whole number of at least 1"),
    (["limit=0"], "limit must be a whole number of at least 1, not 0"),
    (["limit=-1"], "limit must be"),
    (["limit=few"], "limit must be a whole number, not 'few'"),
    (["limit=1.5"], "limit must be a whole number, not '1.5'"),
    (["limit=3,4"], "limit takes one value"),
    (["fail_fast=perhaps"], "fail_fast must be true or false"),
    (["seed=-1"], "seed must be"),
    (["retries=-1"], "retries must be"),
    (["shards=0"], "shards must be"),
    (["shard=2", "shards=2"], "shard=2 does not exist with shards=2"),
    (["prompt=terse"], "no prompt 'terse'"),
    (["axes=[]"], "axes is filled by kvbench"),
    (["budget"], "cannot read the override 'budget'"),
    (["method=snapkv,"], "has a comma too many"),
    (["budget=64,"], "has a comma too many"),
    (["method=snapkv,,fullkv"], "has a comma too many"),
    (["method="], "method= names nothing: choose one of"),
    (["profile=paper"], "name one, as in experiment=table1"),
    (["benchmark=glob(zzz*)"], "matches nothing"),
    (["budget=interval(1,5)"], "list the values"),
])  # fmt: skip
def test_mistakes_are_one_sentence(overrides, words):
    assert re.search(words, mistake(*overrides))


def test_several_values_need_multirun():
    assert "add -m" in mistake("method=snapkv,fullkv", multirun=False)
    assert "add -m" in mistake("benchmark=fake_qa,fake_text", multirun=False)


def test_jobs_are_values():
    (job,) = jobs("method=snapkv", "budget=64")
    assert replace(job) == job
    assert job.limit == 6 and jobs("limit=3")[0].limit == 3


def test_other_weights_or_sets_are_other_cells(monkeypatch):
    from kvbench.identity import revisions

    def digest() -> str:
        compose._cache.clear()
        revisions.register()
        (job,) = plan.jobs(["benchmark=docqa_mini", "method=fullkv"])
        return job.cells[0].digest

    found = [digest()]
    monkeypatch.setattr(revisions, "sets", lambda: "other")
    found.append(digest())
    monkeypatch.setattr(revisions, "weights", lambda folder: "other")
    found.append(digest())
    monkeypatch.undo()
    assert digest() == found[0] and len(set(found)) == 3


def test_a_key_of_another_launcher_is_told_so(capsys):
    from kvbench.cli import main

    assert main(["plan", "launcher.setup=[x]"]) == 2
    assert "launcher.setup is a setting of launcher=slurm" in capsys.readouterr().err
