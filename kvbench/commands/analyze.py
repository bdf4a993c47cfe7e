"""``kvbench analyze``: what stored traces say."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.commands.score import scored
from kvbench.errors import UserError
from kvbench.planning.parsing import add_format, store_parser, store_settings, whole

if TYPE_CHECKING:
    from kvbench.analysis.decision import Splits

DEFAULT = {
    "store": "runs/default",
    "metric": "fidelity_rougeL",
    "drift": "none",
    "development": "0.25",
    "test": "",
    "seed": "0",
}
EPILOG = """keys:
  metric=NAME         what a policy is judged by (default fidelity_rougeL)
  drift=POLICY        whose drift ranks the samples (default none: the one-shot selection's)
  development=SHARE   share of the samples to choose on (default 0.25), or a file of sample ids, one a line
  test=FILE           ids of the samples to confirm on (default: all that are not in development)
  seed=N              seed of the splits (default 0)"""


def main(arguments: list[str]) -> int:
    from kvbench.checks import suggest

    parser = store_parser(
        "analyze", "Fidelity, drift, thresholds and costs of refresh policies: `analyze drift STORE`."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_format(parser)
    options = parser.known(arguments)
    kind, *words = options.settings or [""]
    if kind != "drift":
        raise UserError(f"kvbench analyze cannot analyse {kind!r}: {suggest(kind, ['drift'])}")
    settings = store_settings(words, DEFAULT)
    return _print_drift(settings, options.format)


def _print_drift(settings: dict[str, str], format: str) -> int:
    from kvbench.analysis import drift_report

    store = Path(settings["store"])
    share, splits = _splits(settings)
    seed = whole("seed", settings["seed"], 0)
    code = scored(store)
    frames = drift_report.analyses(
        store, settings["metric"], settings["drift"], share=share, seed=seed, splits=splits
    )
    folder = drift_report.write(store, frames)
    print(drift_report.render(frames, settings["metric"], format))
    if format == "text":
        print(f"the same as CSV: {folder}/drift-*.csv")
    return code


def _splits(settings: dict[str, str]) -> tuple[float, Splits | None]:
    """(share, None) of seeded splits, or (0, splits) of given ones."""
    from kvbench.analysis.decision import Splits

    development, test = settings["development"], settings["test"]
    if Path(development).is_file():
        return 0, Splits(_ids(development), _ids(test) if test else None)
    if test:
        raise UserError("test=FILE needs the samples to choose on as well: add development=FILE.")
    try:
        share = float(development)
    except ValueError:
        raise UserError(
            f"development={development} is neither a file nor a share: give a file of ids, or 0.25, say."
        ) from None
    if not 0 < share < 1:
        raise UserError(
            f"development must leave samples on both sides: give a share like 0.25, not {share:g}."
        )
    return share, None


def _ids(file: str) -> frozenset[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): name a file of sample ids.") from error
    return frozenset(line.strip() for line in lines if line.strip())
