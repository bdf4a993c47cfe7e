"""``kvbench power``: how small a difference a number of samples can show."""

from __future__ import annotations

from pathlib import Path

from kvbench.commands import DONE
from kvbench.errors import UserError
from kvbench.planning.parsing import add_format, store_parser, store_settings
from kvbench.rendering import MISSING, plain, render

TITLE = "the smallest difference that n paired samples show"
LEGEND = "sd: standard deviation of the paired differences."


def main(arguments: list[str]) -> int:
    parser = store_parser(
        "power",
        "The smallest paired difference that n samples show with 80 % power at the 5 % level, from a given"
        " sd=NUMBER of the paired differences or from a store's own; keys: n=A,B,C power=0.8 alpha=0.05.",
    )
    add_format(parser)
    options = parser.known(arguments)
    words = options.settings
    usual = {"store": "runs/default", "sd": "", "n": "", "power": "0.8", "alpha": "0.05"}
    # With an sd no store is read, so none has to be there.
    given = [*words, "store=."] if any(word.startswith("sd=") for word in words) else words
    settings = store_settings(given, usual)
    counts = [_number("n", word, int) for word in settings["n"].split(",") if word]
    power, alpha = (_number(name, settings[name], float) for name in ("power", "alpha"))
    from kvbench.analysis.power import detectable, of_store
    from kvbench.analysis.resampling import FEWEST

    if too_few := [n for n in counts if n < FEWEST]:
        raise UserError(f"n={too_few[0]} has no interval, so it shows nothing: give at least {FEWEST}.")
    if settings["sd"]:
        sd = _number("sd", settings["sd"], float)
        found = [(n, detectable(sd, n, power, alpha)) for n in counts or [20, 50, 100, 200, 500, 1000]]
        title = f"{TITLE} (power {power:g}, level {alpha:g}), in the unit of sd={sd:g}"
        rows = [[str(n), f"{smallest:.4g}"] for n, smallest in found]
        print(render([plain(title, ["n", "difference"], rows, [LEGEND])], options.format))
        return DONE
    from kvbench.commands.score import scored

    code = scored(Path(settings["store"]))
    frame = of_store(Path(settings["store"]), counts, power, alpha)
    if frame.empty:
        raise UserError(
            f"{settings['store']} holds no pair of scored cells to compare: run snapkv and snapkv+bacon, or"
            " give sd=."
        )
    shown = [[_shown(value) for value in row] for row in frame.itertuples(index=False)]
    print(render([plain(f"{settings['store']}: {TITLE}", list(frame), shown, left=3)], options.format))
    return code


def _shown(value: object) -> str:
    """A cell of the table; a hole where there is no number."""
    if not isinstance(value, float):
        return str(value)
    return MISSING if value != value else f"{value:.4g}"


def _number(name: str, word: str, kind: type) -> float:
    try:
        return kind(word)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise UserError(f"{name} must be {what}, not {word!r}.") from None
