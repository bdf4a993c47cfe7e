"""``kvbench list``: what can be named in a command."""

from __future__ import annotations

from kvbench.checks import suggest
from kvbench.commands import DONE
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser

KINDS = ("methods", "refresh", "models", "benchmarks", "experiments")


def main(arguments: list[str]) -> int:
    parser = Parser(prog="kvbench list", description="What can be named in a command.")
    parser.add_argument(
        "kind",
        nargs="*",
        metavar="KIND",
        help=f"{', '.join(KINDS)} (default: all); tasks [WORD]: lmms-eval's; plugins=[FILE.py]",
    )
    words = parser.known(arguments).kind
    if words[:1] == ["tasks"]:
        _print_tasks(*words[1:])
        return DONE
    from kvbench.commands import overview
    from kvbench.planning import compose

    compose.plug(words)
    chosen = [word for word in words if not word.startswith("plugins=")] or KINDS
    for kind in chosen:
        if kind not in KINDS:
            raise UserError(f"cannot list {kind!r}: {suggest(kind, (*KINDS, 'tasks'))}")
    for kind in chosen:
        overview.print_names(kind, heading=len(chosen) > 1)
    return DONE


def _print_tasks(word: str = "") -> None:
    """Tasks of lmms-eval whose name or data hold a word; those that kvbench cannot run say why."""
    from kvbench.benchmarks import catalogue
    from kvbench.rendering import plain, render

    rows = [
        [task.name, f"{task.data} {task.subset}".strip(), task.split, ", ".join(task.metrics[:2]), task.why]
        for task in catalogue.every(word)
    ]
    if not rows:
        raise UserError(f"no task of lmms-eval holds {word!r}: `kvbench list tasks` names all.")
    columns = ["task", "data", "split", "metrics", "cannot be run: it"]
    print(render([plain(f"{len(rows)} tasks of lmms-eval", columns, rows, left=5)], "text", 200))
