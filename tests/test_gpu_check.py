"""scripts/gpu_check.py in miniature on the CPU: its sections run, and its checks can fail."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from kvbench import engine
from kvbench.bench import workload
from kvbench.engine import compiled

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_check.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(compiled, "BACKEND", "eager")  # traced whole; a C++ compiler would take a minute
    monkeypatch.setattr(workload.Peak, "reset", lambda self: None)
    monkeypatch.setattr(workload.Peak, "bytes", lambda self: 3 * 2**30)
    monkeypatch.setattr(workload, "text_prompt", workload.random_prompt)
    torch._dynamo.reset()
    return module


TOY = ["--device", "cpu", "--size", "toy"]


def test_every_section_runs_in_miniature(script, tmp_path):
    out = tmp_path / "found.json"
    assert script.main([*TOY, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    checks = [name for name in found["exactness"] if name.startswith("check_")]
    assert len(checks) == 9 and all(found["exactness"][name] for name in checks)
    assert [row["path"] for row in found["paths"]] == ["compact", "ragged", "compiled"]
    assert all(row["tokens_per_s"] and row["answers_unlike"] == 0 for row in found["paths"])
    assert found["path_checks"] == {"check_looks_only_every_few_steps": True, "check_paths_equal": True}
    assert found["grid"] and found["select"] and found["ecokv_table5"] and found["not_run"] == []
    assert found["seconds"] > 0


def test_a_wrong_token_and_a_broken_section_are_told(script, tmp_path, monkeypatch, capsys):
    out = tmp_path / "found.json"
    generate = engine.generate

    def wrong_when_ragged(*arguments, **settings):
        answers = generate(*arguments, **settings)
        if settings.get("cache") == "ragged":
            answers[0].tokens[-1] += 1
        return answers

    def broken(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(engine, "generate", wrong_when_ragged)
    for name in ("grid", "select"):
        monkeypatch.setattr(script, name, broken)
    monkeypatch.setattr(script, "TOY", script.Sizes(**{**vars(script.TOY), "tables": ()}))
    assert script.main([*TOY, "--out", str(out)]) == 1
    told = capsys.readouterr().out.splitlines()[-1]
    for check in ("exactness.check_ragged_equal", "path_checks.check_paths_equal", "grid.check_ran"):
        assert check in told
    assert "check_waves_equal" not in told
    assert json.loads(out.read_text())["grid"]["error"] == "RuntimeError: no such kernel"


def test_sections_that_would_come_too_late_are_named(script, tmp_path, monkeypatch):
    out = tmp_path / "found.json"
    monkeypatch.setattr(script, "DEADLINE", -1)
    assert script.main([*TOY, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["not_run"] == ["exactness", "grid", "paths", "select", "ecokv_table5"]


def test_waits_above_one_look_in_eight_steps_fail(script):
    rows = [{"waits_per_step": waits, "answers_unlike": 1} for waits in (0.125, None)]
    assert script.path_checks(rows, False) == {"check_looks_only_every_few_steps": True}
    rows.append({"waits_per_step": 1.0, "answers_unlike": 0})
    assert script.path_checks(rows, True) == {
        "check_looks_only_every_few_steps": False, "check_paths_equal": False
    }  # fmt: skip
    assert script._agree([1, 2, 3], [1, 2, 4]) == 2 and script._agree([1], [1, 2]) == 1


def test_without_a_gpu_the_default_says_so(script, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main([]) == 2 and "no GPU" in capsys.readouterr().out
