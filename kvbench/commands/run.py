"""``kvbench run``: generate what a store lacks."""

from __future__ import annotations

from kvbench.commands.parsing import interleaved, sweep_parser


def main(arguments: list[str]) -> int:
    parser = sweep_parser(
        "run", "Generate the answers that are missing in a store; the same command resumes."
    )
    options = interleaved(parser, arguments)
    from kvbench import launch

    return launch.run(options.overrides, options.multirun, command=["kvbench", "run", *arguments])
