"""The printed command fills the hole: run as it stands, the table is complete afterwards."""

from __future__ import annotations

import shlex

import fakes
import pytest

from kvbench import cli, store
from kvbench.analysis import published
from kvbench.analysis.tables import fill
from kvbench.planning import compose, plan, specs

TOY = ["model=qwen2_vl_7b", "model.weights=random", "benchmark.data=micro"]


@pytest.fixture
def kvbench(monkeypatch, tmp_path):
    """The real configs, with an engine that answers at once."""
    fakes.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    return cli.main


def printed(out: str) -> list[list[str]]:
    """The commands under a table, as a shell would take them."""
    return [shlex.split(line)[1:] for line in out.splitlines() if line.startswith("  kvbench ")]


@pytest.mark.parametrize("name, job, cells", [
    ("docvqa", ["model.size=toy", "model.dtype=float32", "+model.head_dim=8"], []),
    ("docvqa",
     ["prompt=v1", "seed=3", "benchmark.max_new_tokens=7", "benchmark.until=['a b','it\\'s: #1']"], []),
    ("detailcaps", ["benchmark.subset=first_3", "model.max_pixels=401408"],
     ["method.score.radius=5", "method.window=8"]),
    ("docvqa", ["model.system_prompt='Say $x, {y} and \"z\"'"], ["refresh=rcr", "refresh.tau=0.125"]),
])  # fmt: skip
def test_a_printed_command_fills_the_hole(kvbench, capsys, name, job, cells):
    where = [*TOY, f"benchmark={name}", *job, "limit=2", "store='my runs/a=b'"]
    # bacon at 48 is missing, and fullkv where fidelity is held against it; the last word of each kind is what
    # only overrides tell.
    assert kvbench(["run", *where, "method=snapkv+bacon", "budget=64", *cells]) == 0
    assert kvbench(["run", *where, "method=snapkv", "budget=48"]) == 0
    capsys.readouterr()
    kvbench(["table", "store=my runs/a=b"])
    out = capsys.readouterr().out
    commands = printed(out)
    assert commands, out
    known = {cell.digest for cell in store.cells("my runs/a=b")}
    for command in commands:
        assert kvbench(command) == 0, command
    kvbench(["table", "store=my runs/a=b"])
    assert "to fill" not in capsys.readouterr().out
    added = [cell for cell in store.cells("my runs/a=b") if cell.digest not in known]
    methods = {cell.method.split("+")[0].split()[0] for cell in added}
    assert methods == {"snapkv"} | ({"fullkv"} if name == "detailcaps" else set())


def test_a_command_under_a_papers_table_fills_its_holes(kvbench, capsys, tmp_path, monkeypatch):
    """Overrides and files of the cells that are there, over the experiment's own words."""
    monkeypatch.setattr(published, "real", lambda entry: True)  # a toy stands for the paper's model
    heads = tmp_path / "heads.json"
    heads.write_text("[]")
    where = [
        *TOY[1:],
        "model.size=toy",
        "benchmark.max_new_tokens=7",
        f"model.head_scores={heads}",
        "limit=2",
        "store='a=b'",
    ]
    part = ["benchmark=docvqa,textvqa", "method.score.radius=0,5"]
    assert kvbench(["run", "experiment=bacon_table7", "profile=paper", *where, *part]) == 0
    known = len(store.cells("a=b"))
    capsys.readouterr()
    kvbench(["table", "bacon_table7", "store=a=b"])
    out = capsys.readouterr().out
    assert "FILE of model.head_scores: the one whose SHA-256 is " in " ".join(out.split())
    commands = printed(out)
    for command in commands:  # of chartqa the store tells nothing but the model
        more = ["benchmark.data=micro", "limit=2"] if "benchmark=chartqa" in command else []
        assert kvbench([word.replace("=FILE", f"={heads}") for word in command] + more) == 0, command
    assert len(commands) == 2 and len(store.cells("a=b")) == known + 11
    capsys.readouterr()
    kvbench(["table", "bacon_table7", "store=a=b"])
    assert "to fill" not in capsys.readouterr().out


def test_defaults_are_not_printed_and_a_file_is_named_by_what_it_holds(kvbench, capsys, tmp_path):
    heads = tmp_path / "heads.json"
    heads.write_text("[]")
    words = [*TOY, f"model.head_scores={heads}", "limit=1", "store=runs", "benchmark=detailcaps"]
    assert kvbench(["run", *words, "method=snapkv", "budget=64"]) == 0
    capsys.readouterr()
    kvbench(["table", "runs"])
    out = capsys.readouterr().out
    (command,) = printed(out)
    assert command == [
        "run", "model=qwen2_vl_7b", "benchmark=detailcaps", "method=fullkv", "model.head_scores=FILE",
        "model.weights=random", "benchmark.data=micro", "limit=1", "store=runs",
    ]  # fmt: skip
    assert "FILE of model.head_scores: the one whose SHA-256 is " in " ".join(out.split())


@pytest.mark.parametrize("value", [
    None, True, 3, 0.125, "plain", "a/b.c+d-e", "two words", "it's", "a,b", "x=1", "null", "true", "12",
    "1e5", "$x {y} #", 'say "z"', "back\\slash", "end\\", "q\\'q", "", ["a b", "c"], "é",
    {"k": "v w", "n": None},
])  # fmt: skip
def test_values_come_back_as_they_were(value):
    with compose.session():
        (override,) = compose.parse([fill.word("key", value)])
        assert override.value() == value and not override.is_sweep_override()


def test_the_usual_options_are_those_of_a_method_with_none_set():
    with compose.session():
        (job,) = plan.jobs(["model=embedded", "method=snapkv+ecokv", "budget=64", "refresh=rcr"])
        spec = specs.usual("snapkv+ecokv", "rcr", ["model=embedded", "benchmark=docqa_mini"])
    assert spec == job.cells[0].config["method"]


def test_bare_text_is_an_option_like_another_and_null_names_the_cells_of_before():
    where = ["model=smollm2", "benchmark=longbench_mini", "method=fullkv"]
    with compose.session():
        (usual,) = plan.job(where, []).cells
        (bare,) = plan.job([*where, "model.chat=none"], []).cells
        words = fill.of_job(bare)
        (again,) = plan.job([*where, *words], []).cells
    assert "chat" not in usual.config["model"] and bare.config["model"]["chat"] == "none"
    assert again.digest == bare.digest != usual.digest and words == ["++model.chat=none"]


def test_where_no_cell_is_known_nothing_is_overridden():
    assert fill._overrides("snapkv", "docqa_mini", []) == ()
