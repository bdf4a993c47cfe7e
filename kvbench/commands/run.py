"""``kvbench run``: generate what a store lacks."""

from __future__ import annotations

from kvbench.commands import INCOMPLETE
from kvbench.planning.parsing import sweep_parser


def main(arguments: list[str]) -> int:
    parser = sweep_parser(
        "run", "Generate the answers that are missing in a store; the same command resumes."
    )
    parser.add_argument(
        "--clean", action="store_true", help="first delete what the store holds of these cells; asks"
    )
    parser.add_argument(
        "--clean-earlier",
        action="store_true",
        help="first delete their answers of earlier versions of a method alone",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.known(arguments)
    from kvbench.running import launch

    cleaning = options.clean or options.clean_earlier
    chosen = (options.overrides, options.multirun, options.yes)
    if cleaning and not launch.clean(*chosen, only_earlier=not options.clean):
        print("nothing was deleted and nothing was run.")
        return INCOMPLETE

    return launch.run(options.overrides, options.multirun, command=["kvbench", "run", *arguments])
