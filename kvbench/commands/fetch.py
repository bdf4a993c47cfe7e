"""``kvbench fetch``: data sets and checkpoints from the hub."""

from __future__ import annotations

from kvbench.commands import DONE
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser, resolved


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="kvbench fetch",
        description="Download what models and benchmarks name; afterwards all runs with HF_HUB_OFFLINE=1.",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="model=A,B benchmark=C,D experiment=E profile=paper"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what is missing and how large it is")
    options = parser.known(arguments)
    overrides = options.overrides
    if not any(word.startswith(("model=", "benchmark=", "experiment=")) for word in overrides):
        raise UserError(
            "name what to fetch, model=, benchmark= or experiment=NAME; `kvbench doctor` lists it all."
        )
    if options.dry_run:
        from kvbench.commands import doctor

        return doctor.main(overrides)
    from kvbench.setup import fetch

    chosen = resolved(overrides, every=False)
    for kind in ("benchmark", "model"):
        for cfg in chosen[kind]:
            fetch.fetch(cfg, kind, print)
    return DONE
