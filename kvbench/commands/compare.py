"""``kvbench compare``: the same cells in two stores."""

from __future__ import annotations

from pathlib import Path

from kvbench.commands.score import scored
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser, add_format
from kvbench.rendering import render


def main(arguments: list[str]) -> int:
    from kvbench.analysis import resampling

    parser = Parser(
        prog="kvbench compare",
        description="Compare the same cells of two stores: paired differences, flips, what changed.",
    )
    parser.add_argument("stores", nargs="*", metavar="DIR", help="two stores")
    add_format(parser)
    parser.add_argument(
        "--interval",
        choices=resampling.METHODS,
        default=resampling.DEFAULT,
        help="over pages or pictures: t (default), or a bootstrap",
    )
    options = parser.known(arguments)
    if len(options.stores) != 2:
        raise UserError(f"compare takes two stores, not {len(options.stores)}: kvbench compare DIR_A DIR_B.")
    stores = [Path(word.removeprefix("store=")) for word in options.stores]
    for store in stores:
        if not store.is_dir():
            raise UserError(f"there is no store at {store}: name two folders that `kvbench run` wrote.")
    from kvbench.analysis import compare

    code = max(scored(store) for store in stores)
    record = compare.table(compare.compare(*stores, options.interval), f"{stores[0]} and {stores[1]}")
    print(render([record], options.format))
    return code
