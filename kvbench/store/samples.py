"""Which samples a (model, benchmark) asked: STORE/MODEL/BENCHMARK/samples-DIGEST.json.

One file a version of the benchmark (its data, subset, prompt, ...), which the digest names. A data set that
changes under its name is found out before any answer is mixed with older ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbench.errors import UserError
from kvbench.store.files import canonical, pretty, write_atomic


def samples_path(folder: Path, benchmark: Mapping[str, Any]) -> Path:
    """Where the list lies; ``benchmark``: the identity part of its config."""
    return folder / f"samples-{hashlib.sha256(canonical(dict(benchmark)).encode()).hexdigest()[:10]}.json"


def record_samples(folder: Path, benchmark: Mapping[str, Any], ids: Sequence[str]) -> None:
    """Store the ids in order; a longer list replaces the one it continues.

    Raises UserError when the data set now holds other samples than those already asked.
    """
    path = samples_path(folder, benchmark)
    known: list[str] = []
    if path.exists():
        known = json.loads(path.read_text("utf-8"))["samples"]
    shared = min(len(known), len(ids))
    changed = next((index for index in range(shared) if known[index] != ids[index]), None)
    if changed is not None:
        raise UserError(
            f"sample {changed} of {benchmark.get('name')} was {known[changed]} and is {ids[changed]} now, so"
            f" its data changed: fetch the old data again, or run into another store=DIR."
        )
    if len(ids) > len(known):
        write_atomic(path, pretty({"benchmark": dict(benchmark), "samples": list(ids)}))
