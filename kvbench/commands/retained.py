"""``kvbench retained``: which visual tokens the cells of a store keep, for the report's overlays."""

from __future__ import annotations

import sys
from pathlib import Path

from kvbench.commands import DONE
from kvbench.errors import UserError
from kvbench.planning.parsing import store_parser, store_settings


def main(arguments: list[str]) -> int:
    parser = store_parser(
        "retained", "Work out which visual tokens every cell keeps, for the report's overlays."
    )
    parser.add_argument("--samples", type=int, default=4, help="first samples of each benchmark (default: 4)")
    parser.add_argument("--device", default="auto", help="auto (default), cpu or cuda")
    options = parser.known(arguments)
    settings = store_settings(options.settings, {"store": "runs/default"})
    if options.samples < 1:
        raise UserError(f"--samples must be at least 1, not {options.samples}.")
    from kvbench.running import retained

    done = retained.compute(
        Path(settings["store"]), options.samples, options.device, lambda line: print(line, file=sys.stderr)
    )
    print(f"retained tokens of {done} new samples; `kvbench figures` and `report` lay them over the images")
    return DONE
