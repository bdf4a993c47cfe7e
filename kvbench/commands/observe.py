"""``kvbench observe``: what prompts show before anything is compressed."""

from __future__ import annotations

import argparse

from kvbench.errors import UserError
from kvbench.planning.parsing import Parser

EPILOG = """keys, each KEY=VALUE; model and benchmark may be lists A,B,C:
  model, benchmark, limit, store and what `kvbench run` takes of them, as in model.dtype=float16
  experiment=ecokv_figure2, profile=paper: what the papers observed

Values lie in STORE/observations/MODEL/BENCHMARK.json; the same command continues. `kvbench figures` draws
cosines, redundancy, correlation of importance and diversity, and how often recent positions are kept; and,
for pages that kvbench draws, whose evidence is known, what each query sees of it, noise, coherence and
persistence."""


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="kvbench observe",
        description="Measure keys and attention of prompts: one prefill a sample, no answers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="which prompts, and where to store")
    overrides = parser.known(arguments).overrides
    from kvbench.planning import axes
    from kvbench.running import launch

    for word in overrides:
        key = word.partition("=")[0]
        if axes.is_cell_axis(key):
            raise UserError(f"nothing is compressed here, so {key} has no meaning: leave it out.")
    return launch.run([*overrides, "observe=true"], multirun=True, command=["kvbench", "observe", *arguments])
