"""``kvbench list``: what can be named in a command."""

from __future__ import annotations

from kvbench.commands import DONE
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser


def main(arguments: list[str]) -> int:
    from kvbench.checks import suggest

    kinds = ("methods", "refresh", "models", "benchmarks", "experiments")
    parser = Parser(prog="kvbench list", description="What can be named in a command.")
    parser.add_argument(
        "kind", nargs="*", metavar="KIND", help=f"{', '.join(kinds)} (default: all); plugins=[FILE.py]"
    )
    words = parser.known(arguments).kind
    chosen = [word for word in words if not word.startswith("plugins=")] or kinds
    from kvbench.commands import overview
    from kvbench.planning import compose

    compose.plug(words)

    for kind in chosen:
        if kind not in kinds:
            raise UserError(f"cannot list {kind!r}: {suggest(kind, kinds)}")
    for kind in chosen:
        overview.print_names(kind, heading=len(chosen) > 1)
    return DONE
