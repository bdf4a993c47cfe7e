"""The ``kvbench`` command.  Help, plan and list import neither torch nor a benchmark."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from kvbench.commands import DONE, INTERRUPTED, REQUEUE, USER_ERROR
from kvbench.errors import UserError
from kvbench.planning.parsing import EXAMPLES, Parser
from kvbench.running.preempt import Preempted
from kvbench.support.masking import mask

# What a disk, a terminal or the owner of a folder refuses; anything else is a fault of kvbench itself.
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO)

# A command is the module of its name in kvbench/commands/.
COMMANDS = {
    "run": "generate the missing answers of cells",
    "plan": "show what `run` would do and what is done",
    "new": "write a method of your own to begin with, and its test",
    "status": "progress, pace, failures and time left of a store",
    "list": "name methods, refresh policies, models, benchmarks and experiments",
    "doctor": "say what models and benchmarks need here, and what is missing",
    "fetch": "download data sets and checkpoints from the hub",
    "bench": "measure time and memory: decoding, selection, overhead",
    "calibrate": "compute SparseMM's visual-head scores of a model",
    "score": "score stored answers; no model needed",
    "table": "score, then print the table of a store, or of an experiment beside the paper's",
    "reference": "the values that the papers print",
    "observe": "measure keys and attention of prompts: one prefill a sample, no answers",
    "figures": "draw a store's figures: SVG, PDF, PNG",
    "report": "one HTML page of stores: tables, figures, samples",
    "compare": "the same cells in two stores: differences and flips",
    "claims": "the papers' claims: our figures and whether they hold",
    "analyze": "what stored traces say of refresh policies: `analyze drift`",
    "power": "how small a difference a number of samples can show",
}

# What went into another command, by its former name.
MOVED = {"retained": "report overlays=N"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: run one command and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()  # here, where a full disk can still be told
        return code
    except UserError as error:
        print(f"kvbench: {mask(str(error))}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("kvbench: interrupted; the same command continues where it stopped.", file=sys.stderr)
        return INTERRUPTED
    except Preempted as signal:
        print(f"kvbench: stopped by {signal}; the same command continues where it stopped.", file=sys.stderr)
        return REQUEUE
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; the interpreter must not complain when it
        # flushes.
        _silence()
        return DONE
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        if error.filename is None:  # our own output; the interpreter must not try again
            _silence()
        print(f"kvbench: {mask(_refusal(error))}", file=sys.stderr)
        return USER_ERROR


def _refusal(error: OSError) -> str:
    """The sentence for what an operating system refuses, wherever it was met."""
    if error.filename is None:
        return f"cannot print ({error.strerror}): make room, or write the output elsewhere."
    return (
        f"cannot use {error.filename} ({error.strerror}): ask its owner for access, or name another place, "
        "as in store=DIR."
    )


def _open_streams() -> None:
    """A process may be started with its output closed; what is printed then goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the life of the process


def _silence() -> None:
    """Let what is still to be printed go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    top = Parser(
        prog="kvbench",
        description="Benchmark KV-cache compression of multimodal language models.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<10} {line}" for name, line in COMMANDS.items())
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
    if command in MOVED:
        raise UserError(f"`kvbench {command}` is now `kvbench {MOVED[command]}`.")
    if command not in COMMANDS:
        from kvbench.checks import suggest

        raise UserError(f"unknown command {command!r}: {suggest(command, COMMANDS)}")
    try:
        return import_module(f"kvbench.commands.{command}").main(rest)
    except SystemExit as stop:  # argparse has printed the help
        return int(stop.code or 0)


def script() -> Any:
    """For ``python -m kvbench.cli``."""
    sys.exit(main())


if __name__ == "__main__":
    script()
