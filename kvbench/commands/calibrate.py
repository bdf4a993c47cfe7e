"""``kvbench calibrate``: what a method needs to know about a model."""

from __future__ import annotations

from pathlib import Path

from kvbench.commands import DONE
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser


def main(arguments: list[str]) -> int:
    from kvbench.checks import suggest

    parser = Parser(
        prog="kvbench calibrate",
        description="Compute what a method needs to know about a model. `calibrate heads model=NAME` finds"
        " the visual heads that sparsemm gives most of its budget.",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="heads KEY=VALUE", help="heads, then the model and its keys"
    )
    parser.add_argument("--pictures", type=int, default=12, help="pictures to read out (default: 12)")
    parser.add_argument(
        "--out", type=Path, default=None, help="JSON file to write (default: MODEL-heads.json)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=None,
        help="folder of pictures with boxes, as SynthDoG (default: drawn pages)",
    )
    options = parser.known(arguments)
    if not options.overrides or options.overrides[0] != "heads":
        given = options.overrides[0] if options.overrides else ""
        raise UserError(f"kvbench calibrate cannot make {given!r}: {suggest(given, ['heads'])}")
    if options.pictures < 1:
        raise UserError(f"--pictures must be at least 1, not {options.pictures}.")
    from kvbench.running import launch

    launch.calibrate(options.overrides[1:], options.pictures, options.out, options.data)
    return DONE
