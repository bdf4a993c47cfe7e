"""A store with made-up answers, laid out as `kvbench run` lays it out."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvbench.errors import UserError
from kvbench.identity import revisions
from kvbench.methods import version
from kvbench.planning.config import benchmark_file
from kvbench.store import Cell, canonical, cells, group_folder, load_folder, pack_kept, write_cell
from kvbench.store.journal import seal

RUNTIME = {"title", "default_limit", "metric", "scale", "metrics", "reference", "needs"}


def benchmark_cfg(name: str, data: Path | str | None = None) -> dict[str, Any]:
    cfg = benchmark_file(name)
    cfg |= {"data": str(data)} if data is not None else {}
    return {**cfg, "revision": revisions.data(cfg["data"])}


def method_cfg(name: str, window: int = 16, **options: Any) -> dict[str, Any]:
    if name == "fullkv":
        return {"name": name, "window": None, "capacity": None, "score": None}
    score = {"name": name.split("+")[1], **options} if "+" in name else {"name": "attention", **options}
    return {"name": name, "window": window, "capacity": {"name": name.split("+")[0]}, "score": score}


def add(
    store: Path,
    benchmark: Mapping[str, Any],
    method: Mapping[str, Any],
    budget: int | None,
    texts: Mapping[int, str],
    *,
    model: str = "toy",
    kept: int | None = None,
) -> Cell:
    """Append one cell with the answers ``texts``; the tokens are the characters' numbers."""
    config = {
        "model": {"name": model},
        "benchmark": {key: value for key, value in benchmark.items() if key not in RUNTIME},
        "method": dict(method),
        "budget": budget,
        "seed": 0,
        "prompt": "default",
    }
    with contextlib.suppress(UserError):  # some methods are as made up as their answers
        config |= {"code": code} if (code := version.of(config["method"])) else {}
    digest = hashlib.sha256(canonical(config).encode()).hexdigest()[:16]
    folder = group_folder(store, model, benchmark["name"])
    cell = Cell.from_config(digest, config, folder)
    write_cell(cell)
    entries = kept or budget or 400
    with open(folder / "journal.jsonl", "ab") as journal:
        for index, text in texts.items():
            journal.write(
                seal(
                    {
                        "cell": digest,
                        "sample": f"s{index}",
                        "index": index,
                        "text": text,
                        "tokens": [ord(letter) for letter in text],
                        "stopped": "eos",
                        "prompt_length": 400,
                        "kept": pack_kept([[entries, entries], [entries, entries]]),
                        "seconds": 0.1,
                    }
                )
            )
    return cell


def failures(store: Path) -> list[dict[str, Any]]:
    """Samples whose last word is an error: index, sample, type, message."""
    found = []
    for cell in cells(store):
        for index, record in sorted(load_folder(cell.folder).failed(cell.digest).items()):
            found.append({"index": index, "sample": record["sample"], **record["error"]})
    return found
