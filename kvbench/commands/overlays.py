"""``overlays=N`` of `kvbench report` and `kvbench figures`: first work out which visual tokens are kept."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvbench.errors import UserError
from kvbench.planning.parsing import Parser


def add_overlays(parser: Parser) -> None:
    """The options; without them what is stored is shown, and no model is loaded."""
    parser.add_argument(
        "--overlays",
        type=int,
        default=0,
        help="lay kept tokens over the first N pictures a benchmark; loads the model for new ones",
    )
    parser.add_argument("--plugins", help="files of the methods of one's own among the cells, as for run")
    parser.add_argument("--device", default="auto", help="for the overlays: auto (default), cpu or cuda")


def overlays(store: Path, options: argparse.Namespace) -> None:
    """Work out and store what is asked for. Raises UserError where it cannot be."""
    if options.overlays < 0:
        raise UserError(f"overlays must be at least 0, not {options.overlays}.")
    if not options.overlays:
        return
    from kvbench.planning import compose
    from kvbench.running import retained

    if options.plugins:
        compose.plug([f"plugins={options.plugins}"])
    log = lambda line: print(line, file=sys.stderr)  # noqa: E731
    retained.compute(store, options.overlays, options.device, log)
