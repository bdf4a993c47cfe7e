"""``kvbench table``: a store's table."""

from __future__ import annotations

from pathlib import Path

from kvbench.commands.parsing import store_parser, store_settings
from kvbench.commands.score import scored
from kvbench.errors import UserError


def main(arguments: list[str]) -> int:
    parser = store_parser("table", "Print a store's table: methods down, benchmarks and budgets across.")
    from kvbench import analysis

    known = ", ".join(analysis.FORMATS)
    parser.add_argument("--format", choices=analysis.FORMATS, help=f"{known} (default: text)")
    parser.add_argument(
        "--beside", metavar="PAPER:TABLE", help="measured values next to a paper's, as bacon:1 (markdown)"
    )
    options = parser.known(arguments)
    settings = store_settings(options.settings, {"store": "runs/default", "format": options.format or "text"})
    if settings["format"] not in analysis.FORMATS:
        raise UserError(f"format must be one of {known}, not {settings['format']!r}.")
    code = scored(Path(settings["store"]))
    if options.beside is not None:
        from kvbench.analysis import beside

        print(beside.to_markdown(beside.beside(Path(settings["store"]), options.beside)))
        return code
    print(analysis.table(Path(settings["store"]), format=settings["format"]))
    return code
