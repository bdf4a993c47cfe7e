"""``kvbench run``: generate what a store lacks."""

from __future__ import annotations

from kvbench.commands import INCOMPLETE
from kvbench.commands.parsing import sweep_parser


def main(arguments: list[str]) -> int:
    parser = sweep_parser(
        "run", "Generate the answers that are missing in a store; the same command resumes."
    )
    parser.add_argument(
        "--clean", action="store_true", help="first delete what the store holds of these cells; asks"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.known(arguments)
    from kvbench import launch

    if options.clean and not launch.clean(options.overrides, options.multirun, options.yes):
        print("nothing was deleted and nothing was run.")
        return INCOMPLETE

    return launch.run(options.overrides, options.multirun, command=["kvbench", "run", *arguments])
