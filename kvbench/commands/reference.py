"""``kvbench reference``: the published values."""

from __future__ import annotations

from kvbench.commands import DONE
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser


def main(arguments: list[str]) -> int:
    from kvbench import reference
    from kvbench.reference import show

    parser = Parser(
        prog="kvbench reference",
        description="The values that the papers print, under kvbench's names.",
    )
    parser.add_argument("--paper", help=f"{', '.join(reference.PAPERS)}; all of them when left out")
    parser.add_argument("--table", help="number of a table; all of them when left out")
    parser.add_argument("--format", default="markdown", help="markdown (default) or csv, one row a value")
    options = parser.known(arguments)
    options.format = {"md": "markdown"}.get(options.format, options.format)  # both names are usual
    if options.format not in show.FORMATS:
        raise UserError(f"format must be one of {', '.join(show.FORMATS)}, not {options.format!r}.")
    found = reference.rows(options.paper, options.table)
    print({"markdown": show.to_markdown, "csv": show.to_csv}[options.format](found), end="")
    return DONE
