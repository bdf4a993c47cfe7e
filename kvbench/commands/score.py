"""``kvbench score``: stored answers to scores."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from kvbench.commands import DONE, INCOMPLETE
from kvbench.planning.parsing import store_parser, store_settings


def warned(store: Path) -> list[str]:
    """Score; the warnings, which are printed too."""
    from kvbench import analysis

    warnings = analysis.score_store(store)
    for warning in warnings:
        print(f"kvbench: {warning}", file=sys.stderr)
    return warnings


def exit_code(warnings: Iterable[str]) -> int:
    """Whether anything is incomplete or could not be scored."""
    from kvbench import analysis

    return INCOMPLETE if any(isinstance(warning, analysis.Missing) for warning in warnings) else DONE


def scored(store: Path) -> int:
    """Score and warn; returns the exit code."""
    return exit_code(warned(store))


def main(arguments: list[str]) -> int:
    parser = store_parser(
        "score", "Score every cell of a store through its benchmark's own metric; needs no model."
    )
    settings = store_settings(parser.known(arguments).settings, {"store": "runs/default"})
    code = scored(Path(settings["store"]))
    print(f"scores and results.csv lie in {settings['store']}")
    return code
