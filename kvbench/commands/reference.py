"""``kvbench reference``: the published values."""

from __future__ import annotations

from kvbench.commands import DONE
from kvbench.planning.parsing import Parser, add_format


def main(arguments: list[str]) -> int:
    from kvbench import reference
    from kvbench.reference import show

    parser = Parser(
        prog="kvbench reference",
        description="The values that the papers print, under kvbench's names.",
    )
    parser.add_argument("--paper", help=f"{', '.join(reference.PAPERS)}; all of them when left out")
    parser.add_argument("--table", help="number of a table; all of them when left out")
    add_format(parser, "markdown")
    options = parser.known(arguments)
    print(show.show(reference.rows(options.paper, options.table), options.format), end="")
    return DONE
