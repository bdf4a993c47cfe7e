"""Which visual tokens every cell keeps, as ``overlays=`` of a report stores it beside the answers.

STORE/MODEL/BENCHMARK/retained/INDEX.json holds, per sample, one grid an image and, per cell, a byte a visual
token: the share of (layer, KV head) pairs that keep it, times 255.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvbench.errors import UserError


def file_of(folder: Path, index: int) -> Path:
    return folder / "retained" / f"{index}.json"


def read(folder: Path, index: int) -> dict[str, Any] | None:
    """``{"grids": [{"rows", "columns", "width", "height"}], "cells": {digest: base64}}``; None if unknown.

    ``width`` and ``height`` are those of the whole grid as a multiple of the image's, which padding exceeds.
    """
    path = file_of(folder, index)
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it and call `kvbench report overlays=4` again."
        ) from error
