"""``kvbench figures``: a store's figures as vector and pixel files."""

from __future__ import annotations

from pathlib import Path

from kvbench.commands import DONE
from kvbench.commands.overlays import add_overlays, overlays
from kvbench.commands.score import scored
from kvbench.planning.parsing import store_parser, store_settings
from kvbench.support.words import counted


def main(arguments: list[str]) -> int:
    parser = store_parser(
        "figures",
        "Draw score against budget, realised entries, option maps, cost against fidelity; where answers were "
        "traced, drift, thresholds and refreshes; what `kvbench observe` and `overlays=` found.",
    )
    from kvbench.analysis import figures
    from kvbench.store import cells

    parser.add_argument("--out", type=Path, help="folder to write (default: STORE/figures)")
    parser.add_argument(
        "--formats",
        default=",".join(figures.FORMATS),
        help=f"list of {', '.join(figures.FORMATS)} (default: all of them)",
    )
    add_overlays(parser)
    options = parser.known(arguments)
    settings = store_settings(options.settings, {"store": "runs/default"})
    store = Path(settings["store"])
    overlays(store, options)
    code = scored(store) if cells(store) else DONE  # a store may hold observations alone
    out = options.out or store / "figures"
    paths = figures.write(store, out, [name for name in options.formats.split(",") if name])
    figures_drawn = counted(len({path.stem for path in paths}), "figure")
    print(f"{counted(len(paths), 'file')} of {figures_drawn} in {out}")
    return code
