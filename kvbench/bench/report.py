"""What every measurement ends in: a table for the eye and a JSON file that says where it was measured."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvbench.rendering import plain, render
from kvbench.store.files import pretty, write_atomic

FOLDER = Path("runs/bench")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows with the same keys as a table; floats with three significant digits."""
    names = list(rows[0])
    shown = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    numbers = [place for place, value in enumerate(rows[0].values()) if not isinstance(value, str)]
    # A pipe has no width; the terminal's usual one would cut the columns.
    width = max(140, shutil.get_terminal_size().columns)
    print(render([plain("", names, shown, left=min(numbers, default=len(names)))], "text", width))


def save(name: str, rows: Sequence[dict[str, Any]], settings: dict[str, Any], device: str = "cpu") -> Path:
    """Write runs/bench/NAME.json: the settings, the machine and the rows. Returns the path."""
    path = FOLDER / f"{name}.json"
    write_atomic(path, pretty({"settings": settings, "machine": machine(device), "rows": list(rows)}))
    return path


def machine(device: str = "cpu") -> dict[str, Any]:
    """What a time depends on besides the code: processor or GPU, threads, versions."""
    import torch

    from kvbench.identity.provenance import versions

    on_gpu = device.startswith("cuda")
    return {
        "device": torch.cuda.get_device_name(device)
        if on_gpu
        else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }
