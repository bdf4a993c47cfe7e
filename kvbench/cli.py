"""The ``kvbench`` command.  Help, plan and list import neither torch nor a benchmark."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kvbench.errors import UserError

DONE, INCOMPLETE, USER_ERROR, INTERRUPTED = 0, 1, 2, 130

EXAMPLES = """examples:
  kvbench run model=embedded benchmark=docqa_mini method=snapkv budget=64 limit=20
  kvbench run -m benchmark=docqa_mini,textqa_mini method=fullkv,snapkv,snapkv+bacon budget=128,64 limit=9
  kvbench run experiment=table1
  kvbench table store=runs/table1

exit codes: 0 all done, 1 samples failed or are missing, 2 a mistake in the command or its surroundings"""

OVERRIDES = """overrides are Hydra's KEY=VALUE; with -m a value may be a list A,B,C:
  one job each: model, benchmark, prompt, seed, shard
  cells that share a job's prefill: method, budget, method.window, method.score.OPTION, method.capacity.OPTION
  for all: limit, store, shards, retries, fail_fast
A method is fullkv, CAPACITY or CAPACITY+SCORE; `kvbench list methods` names them and their options."""


class Parser(argparse.ArgumentParser):
    """argparse that answers mistakes with one sentence and the nearest names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`.")

    def known(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse; an option that does not exist is a UserError with the nearest one."""
        namespace, unknown = self.parse_known_args(list(arguments))
        if unknown:
            from kvbench.config import suggest

            options = [option for action in self._actions for option in action.option_strings]
            raise UserError(f"`{self.prog}` has no option {unknown[0]!r}: {suggest(unknown[0], options)}")
        return namespace


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: run one command and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments)
    except UserError as error:
        print(f"kvbench: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("kvbench: interrupted; the same command continues where it stopped.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; the interpreter must not complain when it
        # flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _dispatch(arguments: list[str]) -> int:
    top = Parser(
        prog="kvbench",
        description="Benchmark KV-cache compression of multimodal language models.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<9} {line}" for name, (_, line) in COMMANDS.items())
        + f"\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="kvbench [--help] [--version] COMMAND ...",
        add_help=True,
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    if not arguments:
        top.print_help()
        return USER_ERROR
    if arguments[0].startswith("-"):
        if top.known(arguments[:1]).version:
            from importlib.metadata import version

            print(version("kvbench"))
        return DONE
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        from kvbench.config import suggest

        raise UserError(f"unknown command {command!r}: {suggest(command, COMMANDS)}")
    try:
        return COMMANDS[command][0](rest)
    except SystemExit as stop:  # argparse has printed the help
        return int(stop.code or 0)


def _sweep_parser(name: str, description: str) -> Parser:
    parser = Parser(
        prog=f"kvbench {name}",
        description=description,
        epilog=f"{OVERRIDES}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="let values be lists and run all combinations"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="what to run")
    return parser


def _run(arguments: list[str]) -> int:
    parser = _sweep_parser(
        "run", "Generate the answers that are missing in a store; the same command resumes."
    )
    options = _interleaved(parser, arguments)
    from kvbench import launch

    return launch.run(options.overrides, options.multirun, command=["kvbench", "run", *arguments])


def _plan(arguments: list[str]) -> int:
    parser = _sweep_parser(
        "plan", "Show the jobs, cells and samples of `kvbench run` with the same overrides."
    )
    parser.add_argument("--cells", action="store_true", help="list every cell with its digest")
    options = _interleaved(parser, arguments)
    from kvbench import overview

    overview.print_plan(options.overrides, options.multirun, options.cells)
    return DONE


def _interleaved(parser: Parser, arguments: list[str]) -> argparse.Namespace:
    """Options may stand anywhere between overrides; ``~key`` and ``+key=`` are overrides, not options."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    namespace = parser.known(flags)
    namespace.overrides = [argument for argument in arguments if not argument.startswith("-")]
    return namespace


def _list(arguments: list[str]) -> int:
    from kvbench.config import suggest

    kinds = ("methods", "models", "benchmarks", "experiments")
    parser = Parser(prog="kvbench list", description="What can be named in a command.")
    parser.add_argument(
        "kind", nargs="*", metavar="KIND", help=f"{', '.join(kinds)}; all of them when left out"
    )
    chosen = parser.known(arguments).kind or kinds
    from kvbench import overview

    for kind in chosen:
        if kind not in kinds:
            raise UserError(f"cannot list {kind!r}: {suggest(kind, kinds)}")
    for kind in chosen:
        overview.print_names(kind, heading=len(chosen) > 1)
    return DONE


def _store_parser(name: str, description: str) -> Parser:
    parser = Parser(prog=f"kvbench {name}", description=description)
    parser.add_argument("settings", nargs="*", metavar="store=DIR", help="the store (default runs/default)")
    return parser


def _settings(words: list[str], usual: dict[str, str]) -> dict[str, str]:
    """KEY=VALUE words over defaults; a bare word is the store."""
    from kvbench.config import suggest

    settings = dict(usual)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            key, value = "store", word
        if key not in settings:
            raise UserError(f"unknown key {key!r}: {suggest(key, settings)}")
        settings[key] = value
    if not Path(settings["store"]).is_dir():
        raise UserError(
            f"there is no store at {settings['store']}: name one with store=DIR, or `kvbench run` first."
        )
    return settings


def _scored(store: Path) -> None:
    from kvbench import analysis

    for warning in analysis.score_store(store) or []:
        print(f"kvbench: {warning}", file=sys.stderr)


def _score(arguments: list[str]) -> int:
    parser = _store_parser(
        "score", "Score every cell of a store through its benchmark's own metric; needs no model."
    )
    settings = _settings(parser.known(arguments).settings, {"store": "runs/default"})
    _scored(Path(settings["store"]))
    print(f"scores and results.csv lie in {settings['store']}")
    return DONE


def _table(arguments: list[str]) -> int:
    parser = _store_parser("table", "Print a store's table: methods down, benchmarks and budgets across.")
    parser.add_argument(
        "--format", choices=("text", "markdown", "csv"), default=None, help="text (default), markdown or csv"
    )
    options = parser.known(arguments)
    settings = _settings(options.settings, {"store": "runs/default", "format": options.format or "text"})
    if settings["format"] not in ("text", "markdown", "csv"):
        raise UserError(f"format must be text, markdown or csv, not {settings['format']!r}.")
    from kvbench import analysis

    _scored(Path(settings["store"]))
    print(analysis.table(Path(settings["store"]), format=settings["format"]))
    return DONE


def _calibrate(arguments: list[str]) -> int:
    from kvbench.config import suggest

    parser = _sweep_parser(
        "calibrate", "Compute what a method needs to know about a model: `calibrate heads`."
    )
    parser.add_argument("--pictures", type=int, default=12, help="pictures to read out (default: 12)")
    parser.add_argument(
        "--out", type=Path, default=None, help="JSON file to write (default: MODEL-heads.json)"
    )
    options = parser.known(arguments)
    if not options.overrides or options.overrides[0] != "heads":
        given = options.overrides[0] if options.overrides else ""
        raise UserError(f"kvbench calibrate cannot make {given!r}: {suggest(given, ['heads'])}")
    if options.pictures < 1:
        raise UserError(f"--pictures must be at least 1, not {options.pictures}.")
    from kvbench import launch

    launch.calibrate(options.overrides[1:], options.pictures, options.out)
    return DONE


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "run": (_run, "generate the missing answers of cells"),
    "plan": (_plan, "show what `run` would do and what is done"),
    "list": (_list, "name methods, models, benchmarks and experiments"),
    "calibrate": (_calibrate, "compute SparseMM's visual-head scores of a model"),
    "score": (_score, "score stored answers; no model needed"),
    "table": (_table, "score, then print the table of a store"),
}


def script() -> Any:
    """For ``python -m kvbench.cli``."""
    sys.exit(main())


if __name__ == "__main__":
    script()
