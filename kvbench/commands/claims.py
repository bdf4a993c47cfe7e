"""``kvbench claims``: the papers' claims, with our figures and verdicts."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from kvbench.commands import DONE, INCOMPLETE
from kvbench.commands.score import scored
from kvbench.errors import UserError
from kvbench.planning.parsing import add_format, store_parser, store_settings, whole

DEFAULT = {"store": "runs/claims", "limit": "", "measure": "true"}
EPILOG = """keys:
  limit=N        prompts a benchmark to measure attention and keys on (default: the benchmark's own)
  measure=false  only show what is stored; the model is not loaded, which takes minutes otherwise

The answers come from `kvbench run` into the same store: experiment=claims, claims_equal, claims_terms,
claims_diversity, claims_windows, claims_text, rcr_detailcaps, rcr_threshold_exact and rcr_oracle_vqa,
and what text shows from `kvbench observe experiment=claims_text`; `make claims` runs all of it."""


def main(arguments: list[str]) -> int:
    from kvbench import claims

    summary = "The papers' claims: our figure, its interval, and whether it holds."
    parser = store_parser("claims", summary, DEFAULT["store"])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_format(parser)
    options = parser.known(arguments)
    settings = store_settings(options.settings, DEFAULT)
    store = Path(settings["store"])
    limit, measure = settings["limit"], settings["measure"]
    prompts = whole("limit", limit, 1) if limit else None
    if measure not in ("true", "false"):
        raise UserError(f"measure must be true or false, not {measure!r}.")
    from kvbench.store import cells

    stored = cells(store)
    if measure == "true":
        if not stored:
            raise UserError(
                f"there are no answers in {store}: run `make claims`, or the experiments that --help names."
            )
        from kvbench.claims.measured import measure as fill

        fill(store, prompts)
    if stored:
        scored(store)
    found = claims.rows(store)
    width = max(120, shutil.get_terminal_size((160, 24)).columns)
    print(claims.render(found, store, options.format, width))
    return INCOMPLETE if any(row.estimate is None for row in found) else DONE
