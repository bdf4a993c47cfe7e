"""Mutation testing: small changes to the code, each tried alone against the nearest tests.

    python scripts/mutate.py kvbench/methods kvbench/engine kvbench/analysis -n 60 --seed 0
    python scripts/mutate.py --listed tests/listed_mutants.tsv

A mutant lives when the tests still pass; it is then printed with its place. Works in a copy of the tree.
The copy's tests run in a fork of this process, which has the libraries loaded already, so that a mutant
costs seconds. `-n` mutants are drawn from each folder by a hash of seed and source text: a change elsewhere
leaves the draw as it is. Those of tests/equivalent_mutants.tsv (file, line, change, reason) are not tried.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.tsv"
# Test files that may kill a mutant of a folder. Of these, the tests that call the changed function are run.
TESTS = {
    "kvbench/calibration/": "calibrate families",
    "kvbench/methods/": "scores select_properties golden refresh reselection_loop own_method "
    "contract method_version equal_entries",
    "kvbench/engine/": "cache_loop reselection_loop refresh ragged waves engine compiled not_finite contract "
    "scaling",
    "kvbench/analysis/": "statistics bootstrap compare table beside scoring drift reference fill",
}
# Files that lay out text and pictures and decide no number: nothing is drawn from them.
_LAYOUT = ("figures/", "drift_report.py", "drift_sections.py")
_LAYOUT += tuple(f"tables/{name}.py" for name in ("text", "html", "latex", "markdown", "sheet"))
LAYOUT = tuple(f"kvbench/analysis/{part}" for part in _LAYOUT)
LEFT_OUT = "not smollm2 and not really_compiled"  # minutes, for nothing that the others do not see
SECONDS = 150  # of tests a mutant, measured without one: the fast ones first

COMPARE = {"Lt": "LtE", "LtE": "Lt", "Gt": "GtE", "GtE": "Gt", "Eq": "NotEq", "NotEq": "Eq"}
COMPARE |= {"Is": "IsNot", "IsNot": "Is", "In": "NotIn", "NotIn": "In"}
ARITHMETIC = {"Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult", "FloorDiv": "Mult", "Mod": "Mult"}
ARITHMETIC |= {"Pow": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd"}
NAMES = {"min": "max", "max": "min", "amin": "amax", "amax": "amin", "argmax": "argmin", "any": "all"}
NAMES |= {"all": "any", "floor": "ceil", "ceil": "floor", "argmin": "argmax", "sorted": "list"}
NO_NUMBER = {"strict", "device", "non_blocking", "repr", "frozen", "encoding", "minimum", "maximum", "help"}


@dataclass(frozen=True)
class Mutant:
    """One change: the source text of a file's range is replaced."""

    file: str
    line: int
    start: int  # character offsets in the file
    stop: int
    old: str
    new: str
    text: str  # the line it stands in
    function: str  # that it is part of; "" at the top of a module or class

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is, without its line number."""
        return self.file, self.text, f"{_flat(self.old)} -> {_flat(self.new)}"

    def apply(self, source: str) -> str:
        """The file's source with the change."""
        return source[: self.start] + self.new + source[self.stop :]


def _flat(text: str) -> str:
    return " ".join(text.split())


def changes(node: ast.AST) -> Iterator[ast.AST | str]:
    """What an expression or statement can become, as a node or as text."""
    new = copy.deepcopy(node)
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                new = copy.deepcopy(node)
                new.ops[i] = getattr(ast, COMPARE[type(op).__name__])()
                yield new
        case ast.BinOp() if type(node.op).__name__ in ARITHMETIC and not _textual(node):
            new.op = getattr(ast, ARITHMETIC[type(node.op).__name__])()
            yield new
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
            if node.value:
                yield ast.Constant(node.value - 1)
        case ast.Constant(value=float()):
            yield ast.Constant(node.value * 2 if node.value else 1.0)
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            new.attr = NAMES[name]
            yield new
        case ast.Call() if not _class(node.func):
            for i, keyword in enumerate(node.keywords):
                if keyword.arg and keyword.arg not in NO_NUMBER:
                    new = copy.deepcopy(node)
                    del new.keywords[i]
                    yield new
        case ast.Subscript(slice=ast.Slice() as part):
            for end in ("lower", "upper"):
                if getattr(part, end) is not None:
                    new = copy.deepcopy(node)
                    setattr(new.slice, end, None)
                    yield new
        case ast.IfExp():
            yield node.body
            yield node.orelse
        case ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.AugAssign():
            yield "pass"


def _textual(node: ast.BinOp) -> bool:
    kinds = (ast.JoinedStr,)
    return any(isinstance(s, kinds) or (isinstance(s, ast.Constant) and isinstance(s.value, str))
               for s in (node.left, node.right))  # fmt: skip


def _class(func: ast.expr) -> bool:
    name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")
    return name[:1].isupper() or name in ("dataclass", "field")


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide numbers: no annotations, decorators, messages or type-checking imports."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "exc", "msg", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or _is_docstring(child):
                continue  # formatted strings are words for people
            if isinstance(child, ast.keyword) and child.arg in NO_NUMBER:
                continue
            if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                continue
            yield child
            yield from nodes(child)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def mutants_of(file: Path, root: Path = ROOT) -> list[Mutant]:
    """Every mutant of one source file."""
    source = file.read_text()
    lines = source.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))

    def offset(number: int, column: int) -> int:  # columns count bytes of UTF-8
        return begins[number - 1] + len(lines[number - 1].encode()[:column].decode())

    found = []
    tree = ast.parse(source)
    places = _functions(tree)

    def add(node: ast.AST, new: ast.AST | str) -> None:
        text = new if isinstance(new, str) else f"({ast.unparse(new)})"
        start, stop = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        where = lines[node.lineno - 1].strip()
        name, inside = str(file.relative_to(root)), _function(places, node.lineno)
        found.append(Mutant(name, node.lineno, start, stop, source[start:stop], text, where, inside))

    for node in nodes(tree):
        for new in changes(node):
            add(node, new)
        if isinstance(node, ast.If | ast.IfExp):
            if isinstance(node, ast.If):
                add(node.test, "False")
            add(node.test, f"(not ({ast.unparse(node.test)}))")
    return found


def _functions(tree: ast.AST) -> list[tuple[int, int, str]]:
    """(first line, last line, qualified name) of every function, outer ones first."""
    found = []

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                found.append((child.body[0].lineno, child.end_lineno, name + child.name))
                visit(child, f"{name}{child.name}.<locals>.")
            else:
                visit(child, f"{name}{child.name}." if isinstance(child, ast.ClassDef) else name)

    visit(tree, "")
    return found


def _function(places: list[tuple[int, int, str]], line: int) -> str:
    return next((name for first, last, name in reversed(places) if first <= line <= last), "")


def draw(folders: list[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of each folder; which ones depends on the seed and their own text alone."""
    chosen = []
    for folder in folders:
        path = ROOT / folder
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        every = {m.key: m for file in files for m in mutants_of(file)}
        ranked = sorted(every, key=lambda key: hashlib.sha256(repr((seed, key)).encode()).digest())
        chosen += [every[key] for key in ranked[:count]]
    return chosen


def listed(path: Path) -> list[Mutant]:
    """The mutants of a list: file, text, changed text; tab-separated, `\\n` stands for a line's end."""
    found = []
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        file, old, new = (part.replace("\\n", "\n") for part in line.split("\t")[:3])
        source = (ROOT / file).read_text()
        if source.count(old) != 1:
            sys.exit(f"{path.name}: `{old}` stands {source.count(old)} times in {file}: write it anew.")
        at = source.index(old)
        number = source.count("\n", 0, at) + 1
        text = source.splitlines()[number - 1].strip()
        inside = _function(_functions(ast.parse(source)), number)
        found.append(Mutant(file, number, at, at + len(old), old, new, text, inside))
    return found


def equivalents(path: Path = EQUIVALENT) -> dict[tuple[str, str, str], str]:
    """{what: why nothing can be seen of it}"""
    rows = [line.split("\t") for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {tuple(row[:3]): row[3] for row in rows}


def test_files(mutants: list[Mutant]) -> list[str]:
    """The test files that may kill some of these, each once."""
    folders = {
        folder: names for folder, names in TESTS.items() if any(m.file.startswith(folder) for m in mutants)
    }
    names = dict.fromkeys(name for names in folders.values() for name in names.split())
    return [f"tests/test_{name}.py" for name in names]


class Calls:
    """A pytest plugin that notes which functions of the project every test calls, and how long it takes.

    What a file's fixtures or imports call, all of its tests count as calling.
    """

    def __init__(self, root: Path):
        self.prefix = f"{root}/kvbench/"
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, set[str]] = {}  # by test; by file for what fixtures call

    def _note(self, frame, event, _):
        if event == "call" and (name := frame.f_code.co_filename).startswith(self.prefix):
            self.now.add(f"kvbench/{name.removeprefix(self.prefix)}:{frame.f_code.co_qualname}")

    def _watch(self, owner: str):
        self.now = self.calls.setdefault(owner, set())
        sys.setprofile(self._note)
        yield
        sys.setprofile(None)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_pycollect_makemodule(self, module_path):
        yield from self._watch(f"tests/{module_path.name}")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item):
        yield from self._watch(item.nodeid.partition("::")[0])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        yield from self._watch(item.nodeid)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration

    def tests_of(self, mutant: Mutant, any_file: bool = False) -> list[str]:
        """Tests that call the mutant's function, fast files and fast tests first.

        any_file: those of files that are not its folder's as well.
        """
        files = {
            f"tests/test_{n}.py" for k, v in TESTS.items() if mutant.file.startswith(k) for n in v.split()
        }
        place = f"{mutant.file}:{mutant.function}"

        def called(test: str) -> bool:
            file = test.partition("::")[0]
            if file not in files and not any_file:
                return False
            if not mutant.function:  # what stands outside functions is run on import, whoever imports it
                return True
            return place in self.calls[test] or place in self.calls[file]

        chosen, total = [], 0.0
        for test in sorted(filter(called, self.seconds), key=self.seconds.get):
            total += self.seconds[test]
            if total > SECONDS and chosen:
                break
            chosen.append(test)
        weight = {}
        for test in chosen:
            file = test.partition("::")[0]
            weight[file] = weight.get(file, 0.0) + self.seconds[test]
        return sorted(
            chosen, key=lambda t: (weight[t.partition("::")[0]], t.partition("::")[0], self.seconds[t])
        )


class Tree:
    """A copy of the working tree, in which tests run in forks of this process."""

    def __init__(self, folder: Path):
        self.folder = folder
        skip = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", "*.pyc", ".hypothesis")
        shutil.copytree(ROOT, folder, ignore=skip, dirs_exist_ok=True)
        sys.path[:] = [str(folder), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        os.environ["PYTHONPATH"] = str(folder)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.chdir(folder)

    def measure(self, tests: list[str], notes: Path | None = None) -> Calls:
        """Run all tests once without a mutant; loads what they load, the project's own modules aside.

        notes: where to keep what was found, or where it lies already.
        """
        notes = notes or self.folder / "notes.pickle"
        if not notes.exists() and not self.run(tests, 3600, notes)[0]:
            print(f"{self.output()[-2000:]}\ntests that fail without a mutant are left out.", file=sys.stderr)
        calls = Calls(self.folder)
        calls.calls, calls.seconds, modules = pickle.loads(notes.read_bytes())
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException:  # what cannot be loaded here is loaded by each fork
                continue
        return calls

    def output(self) -> str:
        """What pytest said last."""
        return (self.folder / "output.txt").read_text()

    def run(self, tests: list[str], limit: float, notes: Path | None = None) -> tuple[bool, float]:
        """(passed, seconds)"""
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            self._child(tests, notes)
        while time.monotonic() - started < limit:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status) == 0, time.monotonic() - started
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False, time.monotonic() - started

    def _child(self, tests: list[str], notes: Path | None) -> None:
        code = 1
        try:
            os.setsid()
            output = os.open(self.folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1), os.dup2(output, 2)
            calls, stop = Calls(self.folder), [] if notes else ["-x"]
            code = int(pytest.main([*stop, "-q", "-k", LEFT_OUT, *tests], [calls] if notes else []))
            if notes is not None:
                own = ("kvbench", "tests", "__main__", "conftest", "_pytest", "pytest")
                foreign = [n for n, m in sys.modules.items() if n.split(".")[0] not in own]
                foreign = [n for n in foreign if not hasattr(sys.modules[n], "pytestmark")]
                tests_own = str(self.folder)
                foreign = [
                    n for n in foreign if tests_own not in str(getattr(sys.modules[n], "__file__", ""))
                ]
                notes.write_bytes(pickle.dumps((calls.calls, calls.seconds, foreign)))
        finally:
            os._exit(code)

    def lives(self, mutant: Mutant, tests: list[str], limit: float) -> tuple[bool, float]:
        """(whether the tests pass with the mutant, seconds)"""
        if not tests:
            return True, 0.0
        file = self.folder / mutant.file
        source = file.read_text()
        try:
            file.write_text(mutant.apply(source))
            return self.run(tests, limit)
        finally:
            file.write_text(source)


def main() -> int:
    """Print the mutants that live and the share killed; 1 when any lives."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", help="source folders or files")
    parser.add_argument("-n", type=int, default=60, help="mutants drawn from each folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--listed", type=Path, help="a list of mutants, tried first")
    parser.add_argument(
        "--notes",
        type=lambda path: Path(path).resolve(),
        help="a file that keeps which test calls what, for the next time",
    )
    parser.add_argument("--tests", nargs="*", help="test files or tests, in place of the folders' own")
    parser.add_argument("--skip", action="append", default=[], help="a path prefix that is left out")
    given = parser.parse_args()
    chosen = listed(given.listed.resolve()) if given.listed else []
    chosen += draw(given.folders, given.n, given.seed)
    known = equivalents()
    skipped = (*LAYOUT, *given.skip)
    tried = [m for m in chosen if m.key not in known and not m.file.startswith(skipped)]
    alive: list[Mutant] = []
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = Tree(Path(folder).resolve())
        calls = tree.measure(given.tests or test_files(tried), given.notes)
        for number, mutant in enumerate(tried, 1):
            tests = calls.tests_of(mutant, any_file=bool(given.tests))
            limit = 5 * sum(calls.seconds[test] for test in tests) + 30
            lives, seconds = tree.lives(mutant, tests, limit)
            alive += [mutant] * lives
            what = f"{mutant.file}:{mutant.line}\t{mutant.text}\t{mutant.key[2]}"
            state = f"LIVES after {len(tests)} tests" if lives else "killed"
            print(f"{number}/{len(tried)} {seconds:.0f} s {state} {what}", file=sys.stderr, flush=True)
    for mutant in alive:
        print(f"lives: {mutant.file}:{mutant.line}\t{mutant.text}\t{mutant.key[2]}")
    killed = len(tried) - len(alive)
    print(
        f"{len(chosen)} mutants, {len(chosen) - len(tried)} of them equivalent or left out: "
        f"{killed} of {len(tried)} killed ({killed / max(len(tried), 1):.1%})."
    )
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main())
