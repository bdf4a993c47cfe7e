"""``kvbench bench``: measurements, one module of kvbench/bench/ each."""

from __future__ import annotations

import argparse
from importlib import import_module

from kvbench.commands import DONE, USER_ERROR
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser

# NAME: (module with main(arguments), what it measures)
BENCHES = {
    "grid": ("kvbench.bench.grid", "the whole grid of table 1 against its cells run one by one"),
    "overhead": ("kvbench.bench.overhead", "time of a run beyond the model's forward passes"),
    "select": ("kvbench.bench.select", "time of every method's selection, share of the prefill"),
    "efficiency": ("kvbench.bench.efficiency", "cache size, peak memory and total time (the papers' tables)"),
    "score": ("kvbench.bench.score", "scoring many cells of captions against lmms-eval; the bootstrap"),
    "refresh": ("kvbench.bench.refresh", "decode time per token of refresh policies, relative to one-shot"),
}


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="kvbench bench",
        description="Measure; prints a table and writes runs/bench/NAME.json.",
        epilog="measurements:\n" + "\n".join(f"  {name:<11} {line}" for name, (_, line) in BENCHES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="kvbench bench [--help] NAME ...",
    )
    if not arguments:
        parser.print_help()
        return USER_ERROR
    name, *rest = arguments
    if name.startswith("-"):
        parser.known([name])
        return DONE
    if name not in BENCHES:
        from kvbench.checks import suggest

        raise UserError(f"there is no measurement {name!r}: {suggest(name, BENCHES)}")
    module, _ = BENCHES[name]
    import_module(module).main(rest)
    return DONE
