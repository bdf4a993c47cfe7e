"""Values by sample in one JSON file that a stopped call continues.

``{"of": settings, "samples": {index: values}}``: values of other settings (another model, data set or
definition of a quantity) are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvbench.errors import UserError
from kvbench.store.files import pretty, write_atomic

Values = Mapping[str, Any]  # one sample: page, and quantities by name


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
