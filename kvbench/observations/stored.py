"""Values by sample in one JSON file a model and benchmark, which a stopped call continues.

STORE/observations/MODEL/BENCHMARK.json holds, by sample index: page, length (tokens), the lists of
``keys.keys`` and ``keys.geometry``, ``recent``, for the first sample ``projection``, and ``evidence.looks``
where it is known which tokens hold the answer.

``{"of": settings, "samples": {index: values}}``: values of other settings (another model, data set or
definition of a quantity) are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.errors import UserError
from kvbench.observations import FOLDER
from kvbench.store import group_folder
from kvbench.store.files import pretty, write_atomic

if TYPE_CHECKING:
    from kvbench.planning.plan import Job

Values = Mapping[str, Any]  # one sample: page, and quantities by name


VERSION = 2  # raise when the meaning of a quantity changes: all are then measured again


def path(job: Job) -> Path:
    """Where a job's values lie."""
    folder = group_folder(Path(job.config["store"]) / FOLDER, *names(job))
    return folder.with_name(folder.name + ".json")


def names(job: Job) -> tuple[str, str]:
    return job.config["model"]["name"], job.config["benchmark"]["name"]


def settings(job: Job) -> dict[str, Any]:
    """What the values of a job depend on."""
    identity = job.cells[0].config
    model = identity["model"] | {"window": job.config["model"].get("window")}
    return {"version": VERSION, "model": model, "benchmark": identity["benchmark"]}


def missing(job: Job, count: int) -> int:
    """How many of ``count`` samples have no values yet: they are measured in the order of limits."""
    return max(0, count - len(read(path(job), settings(job))["samples"]))


def read(file: Path, of: dict[str, Any] | None = None) -> dict[str, Any]:
    """A stored document; empty without one, and for one that is not ``of`` these settings.

    Raises UserError for a file that is no such document.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        known = {"of": document["of"], "samples": dict(document["samples"])}
    except FileNotFoundError:
        known = {"of": of, "samples": {}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {file}: delete it and run the same command again.") from error
    return known if of is None or known["of"] == of else {"of": of, "samples": {}}


def fill(file: Path, of: dict[str, Any], found: Iterator[tuple[int, Values]]) -> None:
    """Add samples to a stored document, one by one, so that a stopped call loses one at most."""
    document = read(file, of)
    for index, values in found:
        finite = {key: None if value != value else value for key, value in values.items()}
        document["samples"][str(index)] = finite
        write_atomic(file, pretty(document))


def in_order(document: dict[str, Any]) -> list[Values]:
    """The samples of a document by index."""
    samples = document["samples"]
    return [samples[index] for index in sorted(samples, key=int)]
