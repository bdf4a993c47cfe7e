"""``kvbench table``: a store's table, or an experiment's beside the paper's."""

from __future__ import annotations

import sys
from pathlib import Path

from kvbench.commands.score import scored
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser, add_format, store_settings

DESCRIPTION = """Print a store's table: methods down, benchmarks and budgets across.

With the name of an experiment: that experiment's store (or store=DIR). Where the experiment is a table of a
paper, as in `kvbench table bacon_table1`, each published value stands beside what was measured, its 95 %
interval and the difference; with --against, --interval or --exact the plain table is printed there too."""


def main(arguments: list[str]) -> int:
    import argparse

    from kvbench import analysis
    from kvbench.analysis import resampling

    parser = Parser(
        prog="kvbench table", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "settings", nargs="*", metavar="EXPERIMENT store=DIR", help="default: store=runs/default"
    )
    add_format(parser)
    parser.add_argument(
        "--against",
        metavar="METHOD",
        help="what differences are from, as fullkv or snapkv+mixkv (default: the same capacity without the"
        " score, the same method without its refresh)",
    )
    parser.add_argument(
        "--benchmark", default="", metavar="A,B", help="show these alone (default: all of the store)"
    )
    parser.add_argument(
        "--interval",
        choices=resampling.METHODS,
        default=resampling.DEFAULT,
        help="over pages or pictures: t (default), or a bootstrap",
    )
    parser.add_argument(
        "--exact", action="store_true", help="p of McNemar's exact test and Holm's adjustment, not intervals"
    )
    options = parser.known(arguments)
    experiment, words = _experiment(options.settings)
    usual = {"store": str(experiment.store) if experiment else "runs/default"}
    if experiment and not any(word.startswith("store=") for word in words) and not experiment.store.is_dir():
        raise UserError(f"there is no store at {experiment.store}: call `{experiment.command}` first.")
    settings = store_settings(words, usual)
    store = Path(settings["store"])
    code = scored(store)
    shown = tuple(name for name in options.benchmark.split(",") if name)
    choice = {
        "against": options.against,
        "benchmarks": shown,
        "interval": options.interval,
        "exact": options.exact,
    }
    chosen = choice != {"against": None, "benchmarks": (), "interval": resampling.DEFAULT, "exact": False}
    if experiment is not None and experiment.paper and not chosen:
        from kvbench.analysis.tables import beside_paper

        try:
            print(beside_paper(store, experiment, options.format))
            return code
        except UserError as error:
            if options.format != "text":
                raise  # whoever reads the columns would not notice that they are others
            print(f"kvbench: {error}", file=sys.stderr)  # the plain table follows
    print(analysis.table(store, options.format, **choice))
    return code


def _experiment(words: list[str]):
    """The experiment that a bare word names, and the other words; a bare word may be a store's folder."""
    bare = next((word for word in words if "=" not in word), None)
    if bare is None or "/" in bare:
        return None, words
    from kvbench.planning import experiments

    try:
        return experiments.find(bare), [word for word in words if word != bare]
    except UserError:
        if Path(bare).is_dir():
            return None, words
        raise
