"""Methods of one's own, from a file, from an installed package, and typed into a notebook."""

from __future__ import annotations

import re
import subprocess
import sys

import fakes
import pytest
from hydra.core.config_store import ConfigStore

from kvbench import store
from kvbench.errors import UserError
from kvbench.methods import plugins, registry, version


@pytest.fixture
def kvbench(monkeypatch, tmp_path):
    """The command over a fake model, in a folder of its own; its methods are forgotten afterwards."""
    from kvbench.running import run

    for name in ("load_model", "load_benchmark", "generate"):
        monkeypatch.setattr(run, name, getattr(fakes, name))
    monkeypatch.chdir(tmp_path)
    yield fakes.kvbench
    forget()


def forget():
    """As in a new process that is given no plugins."""
    for kind, methods in registry._REGISTRY.items():
        for name in [name for name, found in methods.items() if not found.__module__.startswith("kvbench.")]:
            del methods[name]
            for group in (ConfigStore.instance().repo.get(group, {}) for group in ("method", kind)):
                for file in [file for file in group if name in file]:
                    del group[file]
    for module in [name for name in sys.modules if name.startswith("kvbench_plugin_")]:
        del sys.modules[module]
    plugins._loaded.clear()
    plugins._remembered.clear()
    version.forget()


GRID = ["-m", "method=fullkv,snapkv,snapkv+mine", "budget=64", "limit=3", "store=runs"]


def answers(capsys) -> str:
    return re.search(r"\d+ answers, \d+ new", capsys.readouterr().out)[0]


def test_a_file_of_ones_own_from_new_to_a_changed_one(kvbench, tmp_path, capsys):
    assert kvbench("new", "method", "mine") == 0 and "plugins=[mine.py]" in capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_mine.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert kvbench("run", *GRID, "plugins=[mine.py]") == 0
    assert answers(capsys) == "9 answers, 9 new"
    file = tmp_path / "mine.py"
    text = file.read_text()
    file.write_text(text.replace("return view.b *", "return -view.b *"))
    forget()  # what reads a store runs no file, and still tells that this one has changed
    assert len(store.cells("runs")) == 2 and len(store.every_cell("runs")) == 3
    assert (
        kvbench("status", "runs") == 0 and "3 answers of 1 cell are of an earlier" in capsys.readouterr().out
    )
    assert kvbench("run", *GRID, "plugins=[mine.py]") == 0
    assert answers(capsys) == "9 answers, 3 new"
    file.write_text(text)
    assert kvbench("run", *GRID, "plugins=[mine.py]") == 0
    assert answers(capsys) == "9 answers, 0 new"
    assert kvbench("list", "methods", "plugins=[mine.py]") == 0 and "score mine" in capsys.readouterr().out


def test_the_command_that_fills_a_hole_names_the_file(kvbench, tmp_path, capsys):
    assert kvbench("new", "method", "mine") == 0
    words = ["run", "plugins=[mine.py]", "limit=2", "store=runs"]
    assert kvbench(*words, "-m", "method=snapkv,snapkv+mine", "budget=64,48") == 0
    (gone,) = [c for c in store.cells("runs") if (c.method, c.budget) == ("snapkv+mine", 48)]
    (gone.folder / "cells" / f"{gone.digest}.json").unlink()
    capsys.readouterr()
    kvbench("table", "store=runs")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "method=snapkv+mine" in line]
    assert f"plugins=[{tmp_path / 'mine.py'}]" in line.replace("'", "")


@pytest.mark.parametrize(("text", "said"), [
    (None, "does not exist"), ("x = (", "bad.py, line 1: SyntaxError"),
    ("\nraise ValueError('no')", "line 2: ValueError"),
    ("x = 1", "registers no method"), ("import absent_module", "line 1: ModuleNotFoundError"),
    ("from kvbench.methods.registry import score\nfrom kvbench.methods.base import Score\n"
     "@score('bacon', line='', source='')\nclass B(Score): pass", "already registered"),
])  # fmt: skip
def test_a_bad_file_is_one_sentence(kvbench, tmp_path, capsys, text, said):
    if text is not None:
        (tmp_path / "bad.py").write_text(text)
    assert kvbench("run", "method=snapkv", "budget=64", "limit=1", "store=runs", "plugins=[bad.py]") == 2
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_two_files_of_one_name_are_told_apart(kvbench, tmp_path):
    assert kvbench("new", "method", "mine") == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.py").write_text((tmp_path / "mine.py").read_text().replace('"mine"', '"yours"'))
    with pytest.raises(UserError, match="two plugin files are called mine.py"):
        plugins.load(["mine.py", "other/mine.py"])


@pytest.mark.parametrize("name", ["bacon", "My-Score", "../x", ""])
def test_a_name_that_cannot_be_is_refused(kvbench, name, tmp_path):
    assert kvbench("new", "method", name) == 2 and not list(tmp_path.iterdir())


def test_a_package_offers_methods_by_an_entry_point(kvbench, tmp_path, monkeypatch):
    """An installed package, as pip leaves it: a module and the metadata that names it."""
    assert kvbench("new", "method", "packed") == 0
    info = tmp_path / "packed-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: packed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvbench.methods]\npacked = packed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.installed.cache_clear()
    plugins.installed()
    assert "packed" in registry.names("score")
    assert version.of({"capacity": {"name": "uniform"}, "score": {"name": "packed"}})
    sys.modules.pop("packed")
    plugins.installed.cache_clear()
    (tmp_path / "packed.py").write_text("raise ImportError('torn')")
    with pytest.raises(UserError, match="methods of packed cannot be loaded"):
        plugins.installed()
    (info / "entry_points.txt").unlink()
    plugins.installed.cache_clear()
    sys.modules.pop("packed", None)


def test_a_class_from_a_notebook_is_selected_by_and_has_no_cells(kvbench):
    import torch

    import kvbench as package
    from kvbench.methods.base import Score

    @package.register("score", "typed")
    class Typed(Score):
        def __call__(self, view, selected):
            return view.b

    Typed.__module__ = "__main__"
    keys, queries = torch.randn(1, 1, 40, 8), torch.randn(1, 2, 4, 8)
    kept = package.select(keys, keys, queries, method="snapkv+typed", budget=8, window=4)
    assert torch.equal(
        kept[0][0], package.select(keys, keys, queries, method="snapkv", budget=8, window=4)[0][0]
    )
    with pytest.raises(UserError, match="unknown kind"):
        package.register("scores", "typed")
    with pytest.raises(UserError, match="already registered"):
        package.register("score", "bacon")(Typed)
