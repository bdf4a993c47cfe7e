"""What a method's source says is part of its cells: a changed one gives new cells, its looks do not."""

from __future__ import annotations

import re
import subprocess

import fakes
import pytest
from hydra.core.config_store import ConfigStore

from kvbench import store
from kvbench.identity import provenance
from kvbench.methods import registry, version

SOURCE = '''
"""A score of one's own."""
from dataclasses import dataclass
from kvbench.errors import UserError
from kvbench.methods.base import Score
from kvbench.methods.registry import option, score
import own_words

@score("own", line="Keys from the right.", source="none")
@dataclass(frozen=True)
class Own(Score):
    """Later keys count more."""
    slope: float = option(1.0, "How much.", minimum=0)

    def scores(self, view):
        """[candidates]"""
        if self.slope > 9:
            raise UserError("too steep: lower it.")
        return self.slope * view.positions
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes the score's source (and that of a module it imports) and registers it anew."""
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    registry.names("score")  # the shipped ones first

    def write(source: str, words: str = "FACTOR = 1\n") -> str:
        registry._REGISTRY["score"].pop("own", None)
        version.forget()
        (tmp_path / "own_words.py").write_text(words)
        (tmp_path / "own.py").write_text(source)
        registry.load_plugin(tmp_path / "own.py")
        return version.of({"capacity": {"name": "uniform"}, "score": {"name": "own"}})

    yield write
    registry._REGISTRY["score"].pop("own", None)
    groups = ConfigStore.instance().repo
    for group in (groups.get("method", {}), groups.get("score", {})):
        for name in [name for name in group if "own" in name]:
            del group[name]
    version.forget()


@pytest.mark.parametrize("before, after", [
    ('"""Later keys count more."""', '"""Later keys count  more."""'),
    ('"""A score of one\'s own."""', "# no docstring"),
    ("return self.slope * view.positions", "return (self.slope\n                * view.positions)  # a line"),
    ("too steep", "very steep"), ('"How much."', '"How steep it is."'), ("from the right", "by place"),
])  # fmt: skip
def test_looks_and_words_do_not_count(own, before, after):
    assert before in SOURCE
    assert own(SOURCE) == own(SOURCE.replace(before, after))


@pytest.mark.parametrize("before, after", [
    ("self.slope * view", "-self.slope * view"), ("option(1.0,", "option(2.0,"), ("minimum=0", "minimum=1"),
    ("self.slope > 9", "self.slope > 8"), ("import own_words", "import own_words as words"),
])  # fmt: skip
def test_what_decides_counts(own, before, after):
    assert before in SOURCE
    assert own(SOURCE) != own(SOURCE.replace(before, after))


def test_which_end_of_a_slice_counts(own):
    first, last = (SOURCE.replace("view.positions", f"view.positions[{part}]") for part in (":1", "1:"))
    assert own(first) != own(last)


def test_what_it_imports_counts(own):
    assert own(SOURCE) == own(SOURCE, "FACTOR = 1  # one\n") != own(SOURCE, "FACTOR = 2\n")


def files(kind: str, name: str) -> set[str]:
    """Names of the shipped files that decide the version of a part."""
    found = version._said(version._file(registry.lookup(kind, name)))
    return {line.split()[0] for line in found}


def test_imports_are_followed_and_every_method_shares_what_selects():
    assert {"bacon.py", "base.py", "select.py", "observation.py"} <= files("score", "bacon")
    assert {"quest.py", "pages.py", "base.py"} <= files("refresh", "quest") and "rcr.py" not in files(
        "refresh", "quest"
    )
    assert {path.name for path in version.SHARED} == {"method.py", "observation.py", "select.py"}
    for path in version.SHARED:
        assert path.is_file()
    plain = {"capacity": {"name": "uniform"}, "score": {"name": "window"}}
    assert version.of(plain) != version.of({**plain, "refresh": {"name": "rcr"}})
    assert version.of(plain) != version.of({**plain, "capacity": {"name": "adakv"}})
    assert version.of({"name": "fullkv", "capacity": None, "score": None}) is None


def test_a_change_of_what_selects_changes_every_method(monkeypatch, tmp_path):
    specs = [{"capacity": {"name": "uniform"}, "score": {"name": name}} for name in registry.names("score")]
    before = [version.of(spec) for spec in specs]
    assert len(set(before)) == len(before)
    changed = tmp_path / "select.py"
    changed.write_text((version.HERE / "select.py").read_text() + "\nEXTRA = 1\n")
    monkeypatch.setattr(version, "SHARED", (*version.SHARED[:2], changed))
    version.forget()
    assert not set(before) & {version.of(spec) for spec in specs}
    version.forget()


@pytest.fixture
def kvbench(monkeypatch, tmp_path):
    from kvbench.running import run

    for name in ("load_model", "load_benchmark", "generate"):
        monkeypatch.setattr(run, name, getattr(fakes, name))
    monkeypatch.chdir(tmp_path)
    return fakes.kvbench


GRID = ["-m", "method=fullkv,snapkv,snapkv+own", "budget=64", "limit=3", "store=runs"]


def test_a_changed_method_is_computed_anew_and_the_old_answers_stand_apart(kvbench, own, capsys):
    def run(*words: str) -> str:
        assert kvbench("run", *GRID, *words) == 0
        return re.search(r"\d+ answers, \d+ new", capsys.readouterr().out)[0]

    own(SOURCE)
    kvbench_conf()
    assert run() == "9 answers, 9 new"
    own(SOURCE.replace("Later", "The later"))
    assert run() == "9 answers, 0 new"
    own(SOURCE.replace("self.slope *", "-self.slope *"))
    assert kvbench("status", "runs") == 0
    said = capsys.readouterr().out
    assert "6 answers, 0 missing" in said and "3 answers of 1 cell are of an earlier version" in said
    assert kvbench("plan", *GRID) == 0
    assert "3 answers of 1 cell are of an earlier version" in capsys.readouterr().out
    assert run() == "9 answers, 3 new"
    assert {cell.method for cell in store.cells("runs")} == {"fullkv", "snapkv", "snapkv+own"}
    assert len(store.cells("runs")) == 3 and len(store.every_cell("runs")) == 4
    assert len(store.load_responses("runs")) == 9
    assert run("--clean-earlier", "--yes") == "9 answers, 0 new"
    assert len(store.every_cell("runs")) == 3
    own(SOURCE.replace("self.slope *", "2 * self.slope *"))
    assert run("method=snapkv+own", "--clean", "--yes") == "3 answers, 3 new"
    assert len(store.every_cell("runs")) == 3, "--clean takes earlier versions along"


def kvbench_conf() -> None:
    """Hydra's groups of methods exist once a process: make those of the new score."""
    from kvbench.planning import compose

    compose.register()


def test_a_store_without_versions_is_of_an_earlier_one(kvbench, capsys):
    """Releases before this one stored no version: their answers are said and computed anew."""
    words = ["method=snapkv", "budget=64", "limit=2", "store=runs"]
    assert kvbench("run", *words) == 0
    (cell,) = store.cells("runs")
    old = {key: value for key, value in cell.config.items() if key != "code"}
    del old["method"]["capacity"], old["method"]["score"]["kernel"]
    old["method"]["capacity"] = {"name": "uniform"}
    path = cell.folder / "cells" / "0123456789abcdef.json"
    path.write_text(store.canonical(old))
    (cell.folder / "cells" / f"{cell.digest}.json").unlink()
    journal = cell.folder / "journal.jsonl"
    from kvbench.store.journal import read, seal

    records = [
        {
            **{k: v for k, v in record.items() if k != "crc"},
            **({"cell": path.stem} if "cell" in record else {}),
        }
        for record in read(journal)
    ]
    journal.write_bytes(b"".join(map(seal, records)))
    assert store.cells("runs") == []
    assert kvbench("status", "runs") == 2
    assert "2 answers of 1 cell are of an earlier version" in capsys.readouterr().err
    assert kvbench("score", "runs") == 1
    assert "2 answers of 1 cell are of an earlier version" in capsys.readouterr().err
    assert kvbench("run", *words) == 0 and "2 answers, 2 new" in capsys.readouterr().out


def test_provenance_names_method_files_that_git_does_not_hold(tmp_path):
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True
        )

    methods = tmp_path / "package" / "methods"
    methods.mkdir(parents=True)
    git("init", "-q")
    (methods / "known.py").write_text("A = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "x")
    package = methods.parent
    assert "methods" not in provenance.git_state(package)
    (methods / "own.py").write_text("A = 1\n")
    (methods / "known.py").write_text("A = 2\n")
    (tmp_path / "other.py").write_text("A = 2\n")
    assert provenance.git_state(package)["methods"] == [
        "?? package/methods/own.py", "M package/methods/known.py"
    ]  # fmt: skip
