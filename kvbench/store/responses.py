"""What the journals of a (model, benchmark) say: which sample of which cell is answered or failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.errors import UserError
from kvbench.store import journal, layout
from kvbench.store.files import canonical, pretty, write_atomic

if TYPE_CHECKING:
    import pandas

# What may differ between two computations of the same answer: when it was computed, not what it says.
TIMES = ("seconds",)


@dataclass
class Responses:
    """The records of a (model, benchmark), last word first: an answer ends the errors before it."""

    answers: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    errors: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    # Circumstances of each cell's answers, by canonical text and without times, in order of first appearance.
    runs: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    # Number of samples that a limit gave: {limit or None: count}.  Tells a finished job from an unfinished
    # one without the data.
    sizes: dict[int | None, int] = field(default_factory=dict)
    _session: dict[Path, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    def add(self, record: dict[str, Any], path: Path) -> None:
        if "run" in record:
            timeless = {key: value for key, value in record["run"].items() if key != "started"}
            self._session[path] = (canonical(timeless), timeless)
        elif "size" in record:
            self.sizes[record["limit"]] = record["size"]
        elif "error" in record:
            self.errors[record["cell"]][record["index"]] = record
        else:
            known = self.answers[record["cell"]].get(record["index"])
            if known is not None and _timeless(known) != _timeless(record):
                raise UserError(
                    f"{path} holds two different answers of cell {record['cell']} to sample "
                    f"{record['index']}: delete the wrong line, or run into another store=DIR."
                )
            self.answers[record["cell"]][record["index"]] = record
            if known is None and path in self._session:
                text, circumstances = self._session[path]
                self.runs[record["cell"]].setdefault(text, circumstances)

    def failed(self, cell: str) -> dict[int, dict[str, Any]]:
        """Samples whose last word is an error."""
        answered = self.answers.get(cell, {})
        return {index: record for index, record in self.errors.get(cell, {}).items() if index not in answered}

    def expected(self, limit: int | None) -> int | None:
        """How many samples ``limit`` gives, when an earlier session saw it; else None."""
        whole = self.sizes.get(None)
        for asked, count in self.sizes.items():
            if asked is not None and count < asked:
                whole = count
        if whole is not None:
            return whole if limit is None else min(limit, whole)
        if limit is None:
            return None
        return limit if any(count >= limit for count in self.sizes.values()) else None


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMES}


def load_folder(folder: Path, own: tuple[Path, Iterable[dict[str, Any]]] | None = None) -> Responses:
    """Read every journal of ``folder``; ``own`` is a journal whose records are in memory already."""
    responses = Responses()
    for path in layout.journals(folder):
        records = own[1] if own is not None and path == own[0] else journal.read(path)
        for record in records:
            responses.add(record, path)
    return responses


def pack_kept(kept: list[list[int]]) -> dict[str, Any]:
    """Realised entries per layer and KV head, short: one int where all (or a layer's) heads agree."""
    rows: list[Any] = [row[0] if len(set(row)) == 1 else list(row) for row in kept]
    entries = rows[0] if rows and all(row == rows[0] and isinstance(row, int) for row in rows) else rows
    return {"shape": [len(kept), len(kept[0]) if kept else 0], "entries": entries}


def unpack_kept(packed: dict[str, Any]) -> list[list[int]]:
    """The inverse of ``pack_kept``: a list [layers][kv_heads]."""
    layers, heads = packed["shape"]
    entries = packed["entries"]
    rows = [entries] * layers if isinstance(entries, int) else entries
    return [[row] * heads if isinstance(row, int) else list(row) for row in rows]


def _kept_summary(packed: dict[str, Any]) -> tuple[int, float, int]:
    """Smallest, mean and largest number of entries over layers and heads."""
    if isinstance(packed["entries"], int):
        return packed["entries"], float(packed["entries"]), packed["entries"]
    flat = [count for row in unpack_kept(packed) for count in row]
    return (min(flat), sum(flat) / len(flat), max(flat)) if flat else (0, 0.0, 0)


def provenance(folder: Path, cell: str) -> list[dict[str, Any]]:
    """The distinct circumstances under which a cell's answers were computed, without times."""
    return list(load_folder(folder).runs.get(cell, {}).values())


def summarise(cell: layout.Cell, responses: Responses) -> dict[str, Any]:
    """What one cell came to, without times: counts, failures, realised entries, circumstances."""
    answers = [record for _, record in sorted(responses.answers.get(cell.digest, {}).items())]
    summaries = [_kept_summary(record["kept"]) for record in answers]
    per_head: list[list[float]] = []
    if answers:
        grids = [unpack_kept(record["kept"]) for record in answers]
        layers, heads = answers[0]["kept"]["shape"]
        per_head = [
            [round(sum(grid[layer][head] for grid in grids) / len(grids), 3) for head in range(heads)]
            for layer in range(layers)
        ]
    return {
        "digest": cell.digest,
        "model": cell.model,
        "benchmark": cell.benchmark,
        "method": cell.method,
        "budget": cell.budget,
        "samples": len(answers),
        "failed": [
            {"index": index, "sample": record["sample"], **record["error"]}
            for index, record in sorted(responses.failed(cell.digest).items())
        ],
        "kept": {
            "min": min((low for low, _, _ in summaries), default=None),
            "mean": round(sum(mean for _, mean, _ in summaries) / len(summaries), 4) if summaries else None,
            "max": max((high for _, _, high in summaries), default=None),
            "mean_per_layer_and_head": per_head,
        },
        "prompt_length": {
            "min": min((record["prompt_length"] for record in answers), default=None),
            "max": max((record["prompt_length"] for record in answers), default=None),
        },
        "answers": [
            {
                "index": record["index"],
                "sample": record["sample"],
                "text": record["text"],
                "stopped": record["stopped"],
            }
            for record in answers
        ],
        "provenance": list(responses.runs.get(cell.digest, {}).values()),
    }


def write_result(cell: layout.Cell, responses: Responses) -> None:
    """Write results/DIGEST.json; the same answers give the same bytes, whatever happened on the way."""
    write_atomic(cell.folder / "results" / f"{cell.digest}.json", pretty(summarise(cell, responses)))


def load_responses(
    store: Path | str, model: str | None = None, benchmark: str | None = None
) -> pandas.DataFrame:
    """One row per answered (cell, sample), sorted by cell and index.

    Columns: model, benchmark, method, budget (None for fullkv), seed, prompt, cell (digest), index, sample,
    text, stopped, tokens (list), prompt_length, kept_min, kept_mean, kept_max (entries per layer and head),
    seconds.
    """
    import pandas

    rows: list[tuple[Any, ...]] = []
    loaded: dict[Path, Responses] = {}
    for cell in layout.cells(store):
        if (model and cell.model != model) or (benchmark and cell.benchmark != benchmark):
            continue
        if cell.folder not in loaded:
            loaded = {cell.folder: load_folder(cell.folder)}
        name = (cell.model, cell.benchmark, cell.method, cell.budget, cell.seed, cell.prompt, cell.digest)
        for index, record in sorted(loaded[cell.folder].answers.get(cell.digest, {}).items()):
            low, mean, high = _kept_summary(record["kept"])
            rows.append(
                (*name, index, record["sample"], record["text"], record["stopped"], record["tokens"])
                + (record["prompt_length"], low, mean, high, record["seconds"])
            )
    names = ["model", "benchmark", "method", "budget", "seed", "prompt", "cell", "index", "sample", "text"]
    names += ["stopped", "tokens"]
    names += ["prompt_length", "kept_min", "kept_mean", "kept_max", "seconds"]
    frame = pandas.DataFrame(rows, columns=names)
    # Int64 keeps budgets whole although fullkv has none.
    return frame.astype({"budget": "Int64"})


def failures(store: Path | str) -> list[dict[str, Any]]:
    """Samples whose last word is an error: model, benchmark, method, budget, index, sample, type, message."""
    found = []
    for cell in layout.cells(store):
        for index, record in sorted(load_folder(cell.folder).failed(cell.digest).items()):
            found.append(
                {
                    "model": cell.model,
                    "benchmark": cell.benchmark,
                    "method": cell.method,
                    "budget": cell.budget,
                    "index": index,
                    "sample": record["sample"],
                    **record["error"],
                }
            )
    return found
