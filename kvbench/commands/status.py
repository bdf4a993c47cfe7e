"""``kvbench status``: how far a store is, by benchmark, shard and cell."""

from __future__ import annotations

from pathlib import Path

from kvbench.commands import DONE, INCOMPLETE
from kvbench.planning.parsing import store_parser, store_settings


def main(arguments: list[str]) -> int:
    parser = store_parser(
        "status",
        "Show what a store has, lacks and failed at, its pace and the time left; exit code 1 while"
        " something is missing.",
    )
    parser.add_argument("--watch", action="store_true", help="look again until all is answered")
    parser.add_argument("--cells", action="store_true", help="list every cell, not only those with failures")
    options = parser.known(arguments)
    settings = store_settings(options.settings, {"store": "runs/default"})
    from kvbench import status

    return DONE if status.show(Path(settings["store"]), options.watch, options.cells) else INCOMPLETE
