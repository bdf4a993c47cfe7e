"""Which samples a (model, benchmark) asked: STORE/MODEL/BENCHMARK/samples-DIGEST.json.

One file a version of the benchmark (its data, subset, prompt, ...), which the digest names: ``order``, the
positions in the data set in the order in which limits take them, and ``samples``, by position the id of each
that was asked. With it a finished run needs no data, and a data set that changes under its name is found out
before any answer is mixed with older ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbench.errors import UserError, first_line
from kvbench.store.files import canonical, pretty, write_atomic


def samples_path(folder: Path, benchmark: Mapping[str, Any]) -> Path:
    """Where the list lies; ``benchmark``: the identity part of its config."""
    return folder / f"samples-{hashlib.sha256(canonical(dict(benchmark)).encode()).hexdigest()[:10]}.json"


def record_samples(
    folder: Path, benchmark: Mapping[str, Any], order: Sequence[int], ids: Mapping[int, str]
) -> None:
    """Store the order of all samples and, by position, the ids of those that are asked now.

    Raises UserError when the data set now holds other samples than those already asked.
    """
    known = _read(folder, benchmark)
    before = known["samples"]
    changed = [
        f"sample {index} of {benchmark.get('name')} was {before[index]} and is {name} now"
        for index, name in ids.items()
        if before.get(index, name) != name
    ]
    if not changed and known["order"] not in (None, list(order)):
        changed = [f"the pictures of {benchmark.get('name')} are not those of earlier answers"]
    if changed:
        raise UserError(
            f"{changed[0]}, so its data changed: fetch the old data again, or run into another store=DIR."
        )
    samples = {str(index): name for index, name in sorted({**before, **ids}.items())}
    document = {"benchmark": dict(benchmark), "order": list(order), "samples": samples}
    write_atomic(samples_path(folder, benchmark), pretty(document))


def order(folder: Path, benchmark: Mapping[str, Any]) -> list[int] | None:
    """Positions of all samples in the order in which limits take them; None when no session has asked."""
    return _read(folder, benchmark)["order"]


def _read(folder: Path, benchmark: Mapping[str, Any]) -> dict[str, Any]:
    path = samples_path(folder, benchmark)
    try:
        found = json.loads(path.read_text("utf-8")) if path.exists() else {"samples": {}}
        if isinstance(found["samples"], list):  # of the time when a limit took the first samples
            found["samples"] = dict(enumerate(found["samples"]))
        return {"order": None, **found, "samples": {int(k): name for k, name in found["samples"].items()}}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({first_line(error)}): delete it; the same `kvbench run` writes it again."
        ) from error
