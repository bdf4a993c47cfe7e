"""The command line: fast where it should be, one sentence and exit code 2 for every mistake."""

from __future__ import annotations

import resource
import subprocess
import sys

import fakes
import pytest

from kvbench import cli

TORCHLESS = """
import sys
from kvbench import cli
code = cli.main({})
assert "torch" not in sys.modules
sys.exit(code)
"""


def mistake(capsys, *arguments: str) -> str:
    """Run a command that must fail as a user's mistake; returns its one sentence."""
    assert cli.main(list(arguments)) == 2
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err and shown.err.startswith("kvbench: ") and shown.err.count("\n") == 1
    return shown.err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["list"], ["plan", "experiment=table1"], ["run", "budget=0"]]
)
def test_no_torch_for_help_list_plan_and_mistakes(arguments):
    done = subprocess.run([sys.executable, "-c", TORCHLESS.format(arguments)], capture_output=True, text=True)
    assert done.returncode == (2 if "budget=0" in arguments else 0), done.stderr


def test_help_is_fast():
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "kvbench.cli", "--help"], capture_output=True, text=True)
        assert done.returncode == 0 and "table" in done.stdout and "exit codes" in done.stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time: a busy machine makes everything slow, but only we can make it long.
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(3)) < 0.5


def test_every_command_has_help(capsys):
    for command in cli.COMMANDS:
        assert cli.main([command, "--help"]) == 0
        assert f"kvbench {command}" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.count(".") >= 1


def test_list_names_everything(capsys):
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in ("embedded", "smollm2", "docqa_mini", "documents_mini", "table1", "bacon", "pyramid"):
        assert name in shown
    assert "method.score.radius=5" in shown and "uniform = snapkv" in shown
    assert cli.main(["list", "models"]) == 0
    assert "docqa_mini" not in capsys.readouterr().out


@pytest.mark.parametrize("arguments, words", [
    (["rnu"], "unknown command 'rnu': did you mean run?"),
    (["--hlep"], "did you mean --help"),
    (["run", "--multi-run"], "no option '--multi-run': did you mean --multirun"),
    (["plan", "--cell"], "no option '--cell': did you mean --cells"),
    (["table", "--formt", "csv"], "no option '--formt': did you mean --format"),
    (["list", "model"], "cannot list 'model': did you mean models"),
    (["score", "stor=x"], "unknown key 'stor': did you mean store"),
    (["score", "store=nowhere/at/all"], "there is no store at nowhere/at/all"),
    (["table", "nowhere"], "there is no experiment 'nowhere'"),
    (["table", "--format", "pdf"], "text"),
    (["run", "model=nope"], "unknown model 'nope': choose one of"),
    (["run", "benchmark=nope"], "unknown benchmark 'nope'"),
    (["run", "method=nope"], "unknown method 'nope'"),
    (["run", "nope=1"], "unknown key 'nope'"),
    (["run", "limit=0"], "limit must be a whole number of at least 1"),
    (["run", "budget=0"], "budget must be a whole number of at least 1"),
    (["run", "budget=8"], "must be larger than the window of 16"),
    (["run", "method=snapkv,fullkv"], "add -m"),
])  # fmt: skip
def test_mistakes_are_one_sentence(capsys, arguments, words):
    assert words in mistake(capsys, *arguments)


@pytest.mark.parametrize("option", ["benchmark.unreadable=stop|exclude", "decode.invariant"])
def test_the_help_of_run_names_options_of_no_group(capsys, option):
    assert cli.main(["run", "--help"]) == 0
    assert option in capsys.readouterr().out


def test_no_arguments_shows_the_help(capsys):
    assert cli.main([]) == 2
    assert "usage: kvbench" in capsys.readouterr().out


def test_a_store_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "choose a writable folder" in mistake(capsys, *fakes.command("run", f"store={tmp_path}/file/s"))


def test_missing_weights_are_one_sentence(capsys, tmp_path, monkeypatch):
    from kvbench.errors import UserError
    from kvbench.running import run

    def missing(config):
        raise UserError("the weights are not here: run `make setup`.")

    monkeypatch.setattr(run, "load_benchmark", fakes.load_benchmark)
    monkeypatch.setattr(run, "load_model", missing)
    command = fakes.command("run", "-m", "benchmark=fake_qa,fake_text", f"store={tmp_path}/s")
    assert cli.main(command) == 2
    *said, sentence = capsys.readouterr().err.splitlines()
    assert said.count("loading fake") == 2
    counts = [line for line in said if line != "loading fake"]
    assert counts == [f"fake / {name}: 6 samples about 6 pictures" for name in ("fake_qa", "fake_text")]
    assert sentence == "kvbench: the weights are not here: run `make setup`."


def test_a_bug_is_not_a_users_mistake(tmp_path, monkeypatch):
    from kvbench.running import run

    def bug(config):
        raise KeyError("bug")

    monkeypatch.setattr(run, "load_benchmark", bug)
    with pytest.raises(KeyError):
        fakes.kvbench("run", f"store={tmp_path}/s")


def test_interrupt_says_how_to_go_on(capsys, tmp_path, monkeypatch):
    from kvbench.running import run

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "load_benchmark", fakes.load_benchmark)
    monkeypatch.setattr(run, "load_model", interrupt)
    assert fakes.kvbench("run", f"store={tmp_path}/s") == 130
    assert "the same command continues" in capsys.readouterr().err
    monkeypatch.setattr(run, "load_model", fakes.load_model)
    monkeypatch.setattr(run, "generate", fakes.generate)
    assert fakes.kvbench("run", f"store={tmp_path}/s") == 0


def test_score_and_table_call_the_analysis(capsys, tmp_path, monkeypatch):
    from kvbench import analysis

    called = []
    monkeypatch.setattr(
        analysis, "score_store", lambda store: called.append(store) or ["no Java: captions wait."]
    )
    monkeypatch.setattr(analysis, "table", lambda store, format, **_: f"a {format} table", raising=False)
    assert cli.main(["score", f"store={tmp_path}"]) == 0
    assert cli.main(["table", str(tmp_path), "--format", "markdown"]) == 0
    assert called == [tmp_path, tmp_path]
    shown = capsys.readouterr()
    assert "a markdown table" in shown.out and "kvbench: no Java: captions wait." in shown.err
    monkeypatch.setattr(analysis, "score_store", lambda store: [analysis.Missing("snapkv is not scored.")])
    assert cli.main(["score", f"store={tmp_path}"]) == 1
    assert cli.main(["table", str(tmp_path)]) == 1


def test_an_option_is_a_setting_too(capsys):
    assert cli.main(["reference", "--paper", "ecokv", "--table", "1", "--format", "csv"]) == 0
    flags = capsys.readouterr().out
    assert cli.main(["reference", "paper=ecokv", "table=1", "format=csv"]) == 0
    assert capsys.readouterr().out == flags != ""
    assert cli.main(["table", "exact=perhaps"]) == 2
    assert "exact must be true or false, not 'perhaps'" in capsys.readouterr().err


def test_a_former_name_says_the_new_one(capsys):
    assert cli.main(["retained", "store=runs/x"]) == 2
    assert "is now `kvbench report overlays=N`" in capsys.readouterr().err
