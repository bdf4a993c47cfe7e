"""``kvbench doctor``: what is present, what is missing, how to get it and how large it is."""

from __future__ import annotations

import sys

from kvbench.commands import DONE, INCOMPLETE
from kvbench.planning.parsing import Parser, resolved


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="kvbench doctor",
        description="Say what models and benchmarks need here: present, missing, how to get it, how large.",
        epilog="exit codes: 0 all is here, 1 something is missing, 2 a mistake in the command.",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="model=A,B benchmark=C,D, or experiment=E profile=paper; every one when left out",
    )
    options = parser.known(arguments)
    from rich.console import Console
    from rich.table import Table

    from kvbench.setup import doctor

    chosen = resolved(options.overrides)
    found = [finding for cfg in chosen["model"] for finding in doctor.model(cfg, thorough=True)]
    found += [finding for cfg in chosen["benchmark"] for finding in doctor.benchmark(cfg)]
    table = Table(box=None, pad_edge=False)
    for column in ("", "of", "what"):
        table.add_column(column)
    table.add_column("GB", justify="right")
    for finding in found:
        size = "" if finding.size_gb is None else f"about {finding.size_gb:g}"
        table.add_row("ok" if finding.present else "MISSING", finding.of, finding.what, size)
    # A pipe has no width; rich would assume 80 columns and fold the rows.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(table)
    lacking = [finding for finding in found if not finding.present]
    console.print(f"\n{len(found) - len(lacking)} present, {len(lacking)} missing")
    return INCOMPLETE if lacking else DONE
