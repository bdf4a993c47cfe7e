"""``kvbench plan``: what `kvbench run` would do."""

from __future__ import annotations

from kvbench.commands import DONE
from kvbench.planning.parsing import sweep_parser


def main(arguments: list[str]) -> int:
    parser = sweep_parser(
        "plan", "Show the jobs, cells and samples of `kvbench run` with the same overrides."
    )
    parser.add_argument("--cells", action="store_true", help="list every cell with its digest")
    options = parser.known(arguments)
    from kvbench.commands import overview

    overview.print_plan(options.overrides, options.multirun, options.cells)
    return DONE
