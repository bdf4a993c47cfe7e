"""Hundreds of strange command lines: each is valid, or one sentence and exit code 2; never a traceback."""

from __future__ import annotations

import random

import badlines
import fakes
import fakestore
import pytest

from kvbench import cli
from kvbench.planning import compose

NAMED = [
    *(f"{key}={badlines.HUGE}" for key in ("seed", "shards", "limit", "budget", "retries")),
    *("~model", "~store", "~seed", "~retries", "model=null", "=3", "model.name=[a]", "seed=²", "method=[]"),
    *("benchmark.max_new_tokens=abc", "benchmark.max_new_tokens=-3", "benchmark.max_new_tokens=0"),
    *("benchmark.max_new_tokens=1.5", "benchmark.until=xyz", "benchmark.until=[3]", "store='a${x}'"),
    *("tracking=1", "launcher=1", "decode=1", "++decode=1", "refresh=1", "hydra=1", "hydra.sweeper=1"),
    *("model.device=mps", "store=a=b", "benchmark.metric=null", "~benchmark.metric"),
]


def refused(capsys, *words: str) -> str:
    """The one sentence of a mistake; empty for a valid command."""
    code = cli.main(fakes.command(*words))
    shown = capsys.readouterr().err
    assert code in (0, 2), words
    if code == 2:
        assert shown.startswith("kvbench: ") and shown.count("\n") == 1 and shown.endswith((".\n", "?\n")), (
            words
        )
    return shown if code else ""


@pytest.mark.parametrize("word", NAMED)
def test_a_mistake_of_every_kind_is_one_sentence(capsys, word):
    assert refused(capsys, "plan", word)


def test_strange_lines_have_a_sentence_or_a_plan(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = list(badlines.sweeps())
    with compose.session():
        answers = [refused(capsys, "plan", *words) for words in random.Random(14).sample(lines, 250)]
    assert 100 < sum(map(bool, answers)) < 250  # of both kinds there are many


@pytest.mark.parametrize("command", ["power", "claims", "analyze", "table", "report", "status", "figures"])
def test_strange_words_of_the_other_commands(capsys, tmp_path, command):
    (tmp_path / "empty").mkdir()
    for pattern in badlines.STORES:
        for value in badlines.VALUES:
            words = ["drift"] if command == "analyze" else []
            code = cli.main([command, *words, f"store={tmp_path}/empty", pattern.format(value)])
            shown = capsys.readouterr().err
            assert code in (0, 1, 2) and (code < 2 or shown.count("\n") == 1), (
                command,
                pattern,
                value,
                shown,
            )


@pytest.mark.parametrize("folder", ["été 2026", "a (b)", "a;b & c"])
def test_a_store_of_any_name_can_be_named(capsys, tmp_path, monkeypatch, folder):
    fakes.install(monkeypatch.setattr)
    store = f"store='{tmp_path}/{folder}'"
    assert cli.main(fakes.command("run", "method=fullkv", "limit=2", store)) == 0
    assert (tmp_path / folder).is_dir()
    assert cli.main(["status", f"store={tmp_path}/{folder}"]) == 0


@pytest.mark.parametrize("command", ["score", "table", "report", "power", "claims", "figures", "compare"])
def test_a_store_of_a_benchmark_that_names_no_metric(capsys, tmp_path, command):
    """Its file in conf/benchmark is gone, or says none: the other benchmarks keep their tables."""
    gone = {**fakestore.benchmark_cfg("documents_mini"), "name": "gone"}
    for cfg in (gone, fakestore.benchmark_cfg("documents_mini")):
        for method, budget in (("fullkv", None), ("snapkv", 64)):
            answers = dict(enumerate(["one two"] * 4))
            fakestore.add(tmp_path / "s", cfg, fakestore.method_cfg(method), budget, answers)
    stores = [f"{tmp_path}/s"] * 2 if command == "compare" else [f"store={tmp_path}/s"]
    more = ["measure=false"] if command == "claims" else []
    assert cli.main([command, *stores, *more]) == (2 if command == "power" else 1)  # no pair to compare
    shown = capsys.readouterr()
    said = "toy on gone is not scored: conf/benchmark has no gone.yaml that names its metric: restore"
    assert said in shown.err
    assert len(list((tmp_path / "s").glob("toy/documents_mini/scores/*.json"))) == 2
