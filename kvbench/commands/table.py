"""``kvbench table``: a store's table."""

from __future__ import annotations

from pathlib import Path

from kvbench.commands import DONE
from kvbench.commands.parsing import store_parser, store_settings
from kvbench.commands.score import scored
from kvbench.errors import UserError


def main(arguments: list[str]) -> int:
    parser = store_parser("table", "Print a store's table: methods down, benchmarks and budgets across.")
    parser.add_argument(
        "--format", choices=("text", "markdown", "csv"), default=None, help="text (default), markdown or csv"
    )
    options = parser.known(arguments)
    settings = store_settings(options.settings, {"store": "runs/default", "format": options.format or "text"})
    if settings["format"] not in ("text", "markdown", "csv"):
        raise UserError(f"format must be text, markdown or csv, not {settings['format']!r}.")
    from kvbench import analysis

    scored(Path(settings["store"]))
    print(analysis.table(Path(settings["store"]), format=settings["format"]))
    return DONE
