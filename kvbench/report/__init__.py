"""One self-contained HTML page of one or more stores: tables, figures, samples, provenance.

The page names the inputs that it was made from, so a second call with the same results leaves it alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kvbench import __version__
from kvbench import store as storage
from kvbench.errors import UserError
from kvbench.paths import conf_dir


@dataclass(frozen=True)
class Options:
    """Most samples with pictures per benchmark, the pictures' longer side, most samples per group."""

    images: int = 200
    pixels: int = 640
    samples: int = 1000


def write(stores: Sequence[Path], out: Path, options: Options, warnings: Sequence[str] = ()) -> bool:
    """Write the page unless ``out`` was made from the same inputs; returns whether it was written.

    Raises UserError for stores without cells.
    """
    for store in stores:
        if not storage.cells(store):
            raise UserError(
                f"there is nothing to report in {store}: name a store that `kvbench run` wrote, store=DIR."
            )
    key = inputs_key(stores, options, warnings)
    if _key_of(out) == key:
        return False
    from kvbench.report.page import render

    storage.write_atomic(out, render(stores, options, warnings, key), choose="--out FILE")
    return True


def inputs_key(stores: Sequence[Path], options: Options, warnings: Sequence[str]) -> str:
    """Digest of everything that a page shows or is made with."""
    total = hashlib.sha256(repr((asdict(options), list(warnings), list(map(str, stores)))).encode())
    answers = ("*/*/journal*.jsonl", "*/*/*/*.json", "*/*/traces/*/*.parquet")
    for store in stores:
        for pattern in ("results.csv", "claims/*.json", "observations/*/*.json", *answers):
            for path in sorted(store.glob(pattern)):
                total.update(f"{path.relative_to(store)} {path.stat().st_size}\n".encode())
                if path.suffix != ".parquet":
                    total.update(path.read_bytes())
    total.update(__version__.encode())
    for path in sorted(
        path for part in ("benchmark", "experiment") for path in conf_dir().glob(f"{part}/*.yaml")
    ):
        total.update(path.read_bytes())
    return total.hexdigest()[:32]


def _key_of(path: Path) -> str | None:
    """The key that an earlier call left at the page's head."""
    try:
        with open(path, encoding="utf-8") as file:
            found = re.search(r'name="kvbench-inputs" content="([0-9a-f]+)"', file.read(2000))
    except OSError:
        return None
    return found.group(1) if found else None
