"""``kvbench score``: stored answers to scores."""

from __future__ import annotations

import sys
from pathlib import Path

from kvbench.commands import DONE
from kvbench.commands.parsing import store_parser, store_settings


def scored(store: Path) -> None:
    from kvbench import analysis

    for warning in analysis.score_store(store) or []:
        print(f"kvbench: {warning}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    parser = store_parser(
        "score", "Score every cell of a store through its benchmark's own metric; needs no model."
    )
    settings = store_settings(parser.known(arguments).settings, {"store": "runs/default"})
    scored(Path(settings["store"]))
    print(f"scores and results.csv lie in {settings['store']}")
    return DONE
