"""``kvbench report``: stores as one HTML page."""

from __future__ import annotations

from pathlib import Path

from kvbench.commands.overlays import add_overlays, overlays
from kvbench.commands.score import exit_code, warned
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser


def main(arguments: list[str]) -> int:
    from kvbench import report

    usual = report.Options()
    parser = Parser(
        prog="kvbench report",
        description="Write one self-contained HTML page: tables, figures, samples, provenance.",
    )
    parser.add_argument("stores", nargs="*", metavar="store=DIR", help="stores (default: runs/default)")
    parser.add_argument("--out", type=Path, help="file to write (default: report.html in the first store)")
    parser.add_argument(
        "--images", type=int, default=usual.images, help=f"pictures a benchmark (default: {usual.images})"
    )
    parser.add_argument(
        "--pixels", type=int, default=usual.pixels, help=f"longer side of a picture (default: {usual.pixels})"
    )
    parser.add_argument(
        "--samples", type=int, default=usual.samples, help=f"samples a benchmark (default: {usual.samples})"
    )
    parser.add_argument(
        "--figures", action="store_true", help="also write the figures as files to STORE/figures"
    )
    add_overlays(parser)
    options = parser.known(arguments)
    for name, least in (("images", 0), ("pixels", 16), ("samples", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name} must be at least {least}, not {getattr(options, name)}.")
    stores = [Path(word.removeprefix("store=")) for word in options.stores or ["runs/default"]]
    for store in stores:
        if not store.is_dir():
            raise UserError(f"there is no store at {store}: name one with store=DIR, or `kvbench run` first.")
    for store in stores:
        overlays(store, options)
    warnings = [warning for store in stores for warning in warned(store)]
    out = options.out or stores[0] / "report.html"
    chosen = report.Options(options.images, options.pixels, options.samples)
    changed = report.write(stores, out, chosen, warnings)
    if options.figures:
        from kvbench.analysis import figures

        for store in stores:
            if changed or not (store / "figures").is_dir():
                figures.write(store, store / "figures")
            print(f"figures: {store / 'figures'}")
    print(f"report: {out}" + ("" if changed else " (nothing changed)"))
    return exit_code(warnings)
