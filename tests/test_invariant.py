"""decode.invariant: in 16 bits an answer does not depend on which methods run together."""

from __future__ import annotations

import fakes
import minidata
import pytest
import torch
from decoding import prompt, small, tokens

from kvbench import cli, store
from kvbench.identity import provenance
from kvbench.running import run

NAMES = ["snapkv", "pyramidkv", "adakv", "snapkv+bacon", "adakv+ecokv", "snapkv+keydiff"]
GRID = [(name, budget, 4) for budget in range(12, 76, 8) for name in NAMES]


@pytest.fixture(scope="module")
def half():
    adapter = small({"adapter": "qwen2_vl", "dtype": "bfloat16"}, layers=4)
    return adapter, [tokens(adapter, prompt(adapter), [entry], new=12)[0] for entry in GRID]


@pytest.mark.parametrize("count", [1, 3, 48])
def test_in_16_bits_a_branch_by_itself_depends_on_no_other(half, count):
    adapter, alone = half
    assert len(GRID) == 48
    found = tokens(adapter, prompt(adapter), GRID[:count], new=12, **run.ONE_BY_ONE)
    assert found == alone[:count]


def test_together_some_of_them_change(half):
    """Else there would be nothing to guard against."""
    adapter, alone = half
    assert tokens(adapter, prompt(adapter), GRID, new=12) != alone


@pytest.mark.parametrize("dtype, words, told", [
    ("float32", [], None),
    ("bfloat16", [], "up to 3 together"),
    ("bfloat16", ["decode.invariant=true"], "one branch at a time"),
    ("float16", ["decode.compile=true"], "compiled, up to 3 together"),
    ("float32", ["decode.compile=true"], "compiled"),
])  # fmt: skip
def test_it_is_asked_of_the_engine_and_told_of_the_answers(tmp_path, monkeypatch, dtype, words, told):
    asked = []

    def generate(*arguments, **settings):
        asked.append({key: settings.get(key) for key in run.ONE_BY_ONE})
        return fakes.generate(*arguments, **settings)

    for name in ("load_model", "load_benchmark"):
        monkeypatch.setattr(run, name, getattr(fakes, name))
    monkeypatch.setattr(run, "generate", generate)
    monkeypatch.setattr(run, "_placement", lambda adapter: ("cpu", dtype))
    monkeypatch.setattr(provenance, "git_state", lambda folder: None)
    grid = ["-m", "method=fullkv,snapkv,adakv", "budget=64", "limit=1", f"store={tmp_path}/s"]
    assert fakes.kvbench("run", *grid, *words) == 0
    alone = words == ["decode.invariant=true"]
    assert asked == [run.ONE_BY_ONE if alone else {"max_branch_bytes": None, "cache": None}]
    cell = store.cells(tmp_path / "s")[0]
    (facts,) = store.load_folder(cell.folder).environment(cell.digest)
    assert facts["versions"].get("decode") == told


def test_a_graph_and_no_batch_do_not_go_together(tmp_path, capsys):
    words = ["decode.compile=true", "decode.invariant=true", f"store={tmp_path}/s"]
    assert fakes.kvbench("run", *words) == 2
    assert "decode.invariant=true has no batch: drop one" in capsys.readouterr().err


@pytest.fixture
def answered(tmp_path, monkeypatch, capsys):
    """`kvbench run` of a toy over four questions, with a number of threads; the sentences under the table."""
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))
    data, before = minidata.write(tmp_path, "docqa_mini"), torch.get_num_threads()

    def answer(name, methods, *words, threads=1):
        torch.set_num_threads(threads)
        words = ["-m", "model=qwen2_vl_7b", "model.weights=random", "model.max_pixels=12544", *words]
        words += ["model.min_pixels=3136", "benchmark=docvqa", f"benchmark.data={data}", "limit=2"]
        words += ["benchmark.max_new_tokens=2", f"method={methods}", "budget=48", f"store={tmp_path}/{name}"]
        assert cli.main(["run", *words]) == 0
        capsys.readouterr()
        assert cli.main(["table", f"store={tmp_path}/{name}"]) == 0
        return " ".join(capsys.readouterr().out.split())

    yield answer
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["model.dtype=bfloat16"],
            "decoded in bfloat16, branches of a sample in one batch (up to 2 together)",
        ),
        (["model.dtype=bfloat16", "decode.invariant=true"], ""),
        (["model.dtype=float32"], ""),
    ],
)
def test_a_table_says_which_batch_made_its_16_bit_answers(answered, words, said):
    shown = answered("s", "fullkv,snapkv", *words)
    assert said in shown and ("decode.invariant=true" in shown) == bool(said)
    assert "threads" not in shown


def test_tables_and_comparisons_name_another_number_of_threads(answered, tmp_path, capsys):
    answered("a", "fullkv", "model.dtype=float32")
    shown = answered("a", "snapkv", "model.dtype=float32", threads=2)
    assert "answered with 1 and 2 threads" in shown and "near ties" in shown
    assert "threads" not in answered("b", "fullkv,snapkv", "model.dtype=float32", threads=2)
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "circumstances: threads: 1 -> 2" in " ".join(capsys.readouterr().out.split())


def test_sessions_of_earlier_releases_keep_their_names():
    """They said nothing of threads, and what they answered stays theirs."""
    run = {"versions": {"torch": "2"}, "git": None, "device": "cpu", "dtype": "float32", "seed": 0}
    assert store.session_of(run) == "f788be01"
    assert store.session_of({**run, "threads": 1}) != store.session_of({**run, "threads": 2})
