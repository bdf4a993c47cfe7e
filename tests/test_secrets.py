"""Secrets do not reach what is stored or shown, and a store that may not be read is one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fakes
import fakestore
import pytest

from kvbench import cli
from kvbench.methods import registry
from kvbench.planning import compose
from kvbench.support import masking

KEY = "0123456789abcdef0123456789abcdef01234567"
COMMANDS = [
    ["status"], ["figures"], ["table"], ["report"], ["score"], ["compare"], ["claims", "measure=false"],
    ["analyze", "drift"], ["power"],
]  # fmt: skip


@pytest.mark.parametrize("text", [
    f'launcher.setup=["export WANDB_API_KEY={KEY}"]', f"HF_TOKEN={KEY}", "password='a b c'", "my.secret=abc",
    "{'api_key': 'abc'}", "hf_" + "a1B2" * 8, "sk-" + "a1B2" * 8, "AKIA" + "ABCD" * 4, f"Bearer {KEY}",
])  # fmt: skip
def test_secrets_are_masked(text):
    shown = masking.mask(text)
    assert masking.MASK in shown and not any(
        word in shown for word in (KEY, "abc", "a1B2", "ABCDABCD", "a b c")
    )


def test_no_option_of_a_run_looks_like_a_secret():
    config = compose.plain(compose.compose([]), resolve=False)
    keys = compose.flat_keys({key: value for key, value in config.items() if key != "hydra"})
    keys += [f"method.{kind}.{o.name}" for kind in registry.KINDS for name in registry.names(kind)
             for o in registry.options(kind, name)]  # fmt: skip
    words = [f"{key}=value" for key in keys] + [f"model.revision={KEY}", "sha256:" + "ab" * 32]
    assert [word for word in words if masking.mask(word) != word] == []


def test_a_run_keeps_no_secret(tmp_path, capsys, monkeypatch):
    fakes.install(monkeypatch.setattr)
    setup = f'+launcher.setup=["export WANDB_API_KEY={KEY}"]'
    assert fakes.kvbench("run", "method=fullkv", "limit=2", f"store={tmp_path}", setup) == 0
    assert fakes.kvbench("run", f"store={tmp_path}", f"+model.api_key={KEY}") == 2
    assert "model.api_key looks like a secret" in capsys.readouterr().err
    assert cli.main(["report", f"store={tmp_path}"]) in (0, 1)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("journal" in path.name for path in files) and any(path.suffix == ".html" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in "".join(capsys.readouterr())


@pytest.fixture
def unreadable(tmp_path, monkeypatch):
    """A store whose inner folders another user has closed; the tests' own user may be root."""
    store = tmp_path / "store"
    benchmark = fakestore.benchmark_cfg("docqa_mini")
    fakestore.add(store, benchmark, fakestore.method_cfg("fullkv"), None, {0: "a"})
    usual = os.scandir

    def scandir(path="."):
        if str(path).startswith(str(store)):
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return store


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_store_of_another_user_is_one_sentence(unreadable, capsys, command):
    words = [str(unreadable)] * 2 if command == ["compare"] else [f"store={unreadable}"]
    assert cli.main([*command, *words]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("kvbench: cannot ") and "Permission denied" in shown and shown.count("\n") == 1


@pytest.mark.parametrize("words", [["list"], ["plan"], ["reference"]])
def test_a_full_disk_behind_the_output_is_one_sentence(words, tmp_path):
    program = [sys.executable, "-m", "kvbench.cli", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "cannot print (No space left on device)" in done.stderr


@pytest.mark.parametrize("words", [["list"], ["reference"]])
def test_a_closed_output_is_silence(words, tmp_path):
    program = f"{sys.executable} -m kvbench.cli {' '.join(words)}"
    done = subprocess.run(f"{program} | true", shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    done = subprocess.run(f"{program} >&-", shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_table_is_read_where_results_cannot_be_written(tmp_path, capsys):
    benchmark = fakestore.benchmark_cfg("docqa_mini")
    fakestore.add(tmp_path, benchmark, fakestore.method_cfg("fullkv"), None, {0: "a", 1: "b"})
    Path(tmp_path / "results.csv").mkdir()  # no file can take its place
    assert cli.main(["table", f"store={tmp_path}"]) == 0
    shown = capsys.readouterr()
    assert "fullkv" in shown.out and "results.csv is not written" in shown.err
