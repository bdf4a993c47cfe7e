"""What the journals of a (model, benchmark) say: which sample of which cell is answered or failed."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from kvbench.errors import UserError
from kvbench.store import journal, layout
from kvbench.store.files import canonical, pretty, pretty_rows, write_atomic
from kvbench.store.lock import locked
from kvbench.support import masking

if TYPE_CHECKING:
    import pandas

# What may differ between two computations of the same answer: when and where, not what it says.
APART = ("seconds", "session")
Group = tuple[int, str]  # seed and prompt: what else tells the questions of a folder's cells apart
ENVIRONMENT = ("versions", "git", "device", "dtype", "seed")
ON_A_CPU = "threads"  # sums round by it, and so near ties of scores; earlier releases did not say it


def group_of(named: Any) -> Group | None:
    """(seed, prompt) of a record or config; None where it names neither."""
    return (named["seed"], named["prompt"]) if "prompt" in named else None


def size_record(group: Group, limit: int | None, size: int) -> dict[str, Any]:
    """The record of how many samples a limit gave."""
    return {"seed": group[0], "prompt": group[1], "limit": limit, "size": size}


def run_record(run: dict[str, Any]) -> dict[str, Any]:
    """The record that opens a session; ``session`` names the circumstances that could change an answer."""
    return {"run": run, "session": session_of(run), "format": journal.FORMAT}


def session_of(run: dict[str, Any]) -> str:
    """Eight hex digits of the circumstances: equal wherever and however often the same code ran."""
    return f"{zlib.crc32(canonical(_facts(run)).encode('utf-8')):08x}"


def _facts(run: dict[str, Any]) -> dict[str, Any]:
    """What of a run could change an answer."""
    facts = {key: run.get(key) for key in ENVIRONMENT}
    return {**facts, ON_A_CPU: run[ON_A_CPU]} if ON_A_CPU in run else facts


@dataclass
class Responses:
    """The records of a (model, benchmark), last word first: an answer ends the errors before it.

    The order in which records are added does not matter, apart from that of one sample's errors.
    """

    answers: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    errors: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    # Sessions by name, those that answered for a cell, and its runs (command, host, time) by their text.
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    answered_in: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    runs: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    # Number of samples that a limit gave: {limit or None: count}, by (seed, prompt), as each is asked by
    # itself; None: what earlier releases noted without them.
    sizes: dict[Group | None, dict[int | None, int]] = field(default_factory=lambda: defaultdict(dict))
    # Sentences: damaged lines, and answers that contradict each other.
    damaged: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    # The run that each journal is in; the journal added to last, and which (cell, session) it told of.
    _run: dict[Path, tuple[str, str, dict[str, Any]]] = field(default_factory=dict)
    _path: Path | None = None
    _told: set[tuple[str, str | None]] = field(default_factory=set)

    def add(self, record: dict[str, Any], path: Path) -> None:
        if "run" in record:
            journal.check_format(record, path)
            run = record["run"]
            session = session_of(run)
            self.sessions.setdefault(session, _facts(run))
            self._run[path] = (session, canonical(run), run)
            self._told.clear()
        elif "size" in record:
            self.sizes[group_of(record)][record["limit"]] = record["size"]
        elif "error" in record:
            self.errors[record["cell"]][record["index"]] = record
        else:
            cell, index = record["cell"], record["index"]
            known = self.answers[cell].setdefault(index, record)
            if known is not record and _content(known) != _content(record):
                self.conflicts.append(f"cell {cell} sample {index} ({record['sample']}) in {path.name}")
            if path is not self._path:
                self._path = path
                self._told.clear()
            if (cell, record.get("session")) not in self._told:
                self._environment(record, path)

    def _environment(self, record: dict[str, Any], path: Path) -> None:
        """Note session and run of an answer; those that follow it in the same run say nothing new."""
        cell = record["cell"]
        self._told.add((cell, record.get("session")))
        session, text, run = self._run.get(path, ("", "", {}))
        self.answered_in[cell].add(record.get("session", session))
        if text and record.get("session", session) == session:
            self.runs[cell].setdefault(text, run)

    def orphans(self, cell: str) -> bool:
        """Whether the circumstances of some answers are lost, which damage alone can do."""
        return not self.answered_in.get(cell, set()) - {""} <= self.sessions.keys()

    def environment(self, cell: str) -> list[dict[str, Any]]:
        """The distinct circumstances (CIRCUMSTANCES) under which a cell's answers were computed."""
        sessions = sorted(self.answered_in.get(cell, ()))
        return [self.sessions[session] for session in sessions if session in self.sessions]

    def failed(self, cell: str) -> dict[int, dict[str, Any]]:
        """Samples whose last word is an error."""
        answered = self.answers.get(cell, {})
        return {index: record for index, record in self.errors.get(cell, {}).items() if index not in answered}

    def asked(self, group: Group) -> int:
        """The most samples that were asked of a seed and prompt; 0: not known."""
        sizes = self.sizes.get(group) or self.sizes.get(None, {})
        return max(sizes.values(), default=0)

    def excluded(self) -> dict[int, dict[str, Any]]:
        """Samples that are left out of all cells, with the record that says why."""
        return {
            index: record
            for cell in self.errors
            for index, record in self.failed(cell).items()
            if record.get("excluded")
        }


def _content(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in APART}


def load_folder(
    folder: Path,
    own: tuple[Path, Iterable[dict[str, Any]]] | None = None,
    cells: Iterable[layout.Cell] = (),
) -> Responses:
    """Merge every journal of ``folder``; ``own`` is a journal whose records are in memory already.

    Duplicates that agree are one answer.  Raises UserError, naming the samples, for those that do not, and
    for answers of cells that the folder does not know; it need not hold ``cells`` yet.
    """
    responses = Responses()
    with journal.uncollected():
        for path in layout.journals(folder):
            records = own[1] if own is not None and path == own[0] else journal.read(path, responses.damaged)
            for record in records:
                responses.add(record, path)
    if responses.conflicts:
        shown = "; ".join(responses.conflicts[:5]) + ("; ..." if len(responses.conflicts) > 5 else "")
        raise UserError(
            f"{folder} holds answers that contradict each other, {len(responses.conflicts)} in all: {shown}. "
            "Delete the journal that is wrong, or begin again with `kvbench run ... --clean`."
        )
    known = {path.stem for path in folder.glob("cells/*.json")} | {cell.digest for cell in cells}
    strangers = sorted({*responses.answers, *responses.errors} - known)
    if strangers:
        raise UserError(
            f"a journal in {folder} has answers of a cell without a file cells/{strangers[0]}.json: restore "
            "that file, or, if the journal is of another experiment, move it back to where it came from."
        )
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


def kept_summary(packed: dict[str, Any]) -> tuple[int, float, int]:
    """Smallest, mean and largest number of entries over layers and heads."""
    if isinstance(packed["entries"], int):
        return packed["entries"], float(packed["entries"]), packed["entries"]
    flat = [count for row in unpack_kept(packed) for count in row]
    return (min(flat), sum(flat) / len(flat), max(flat)) if flat else (0, 0.0, 0)


def kept_overall(packed: Sequence[dict[str, Any]]) -> tuple[int, float, int]:
    """Smallest, mean (four digits) and largest number of entries over samples, layers and heads."""
    entries = [one["entries"] for one in packed]
    if set(map(type, entries)) == {int}:
        return min(entries), round(sum(entries) / len(entries), 4), max(entries)
    lows, means, highs = zip(*map(kept_summary, packed), strict=True)
    return min(lows), round(sum(means) / len(means), 4), max(highs)


def told(cell: layout.Cell) -> list[dict[str, Any]]:
    """The circumstances of a cell's answers as the last run into its folder wrote them; reads no journal."""
    try:
        return orjson.loads((cell.folder / "provenance" / f"{cell.digest}.json").read_bytes())[
            "circumstances"
        ]
    except (OSError, ValueError, KeyError):
        return []


def summarise(cell: layout.Cell, responses: Responses) -> dict[str, Any]:
    """What one cell came to, without times: counts, failures, realised entries, circumstances."""
    found = responses.answers.get(cell.digest, {})
    kept, lengths, answers = [], [], []
    for index in sorted(found):  # one pass: in a large store most of the time is waiting for memory
        record = found[index]
        kept.append(record["kept"])
        lengths.append(record["prompt_length"])
        row = {"index": index, "sample": record["sample"], "text": record["text"]}
        answers.append({**row, "stopped": record["stopped"]})
    low, mean, high = kept_overall(kept) if kept else (None, None, None)
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
        "kept": {"min": low, "mean": mean, "max": high, "mean_per_layer_and_head": _mean_per_head(kept)},
        "prompt_length": {"min": min(lengths, default=None), "max": max(lengths, default=None)},
        "answers": answers,
        "provenance": responses.environment(cell.digest),
    }


def _mean_per_head(packed: list[dict[str, Any]]) -> list[list[float]]:
    """Mean entries [layers][kv_heads] over samples."""
    if not packed:
        return []
    import numpy

    alike = [one["entries"] for one in packed if isinstance(one["entries"], int)]
    total = numpy.full(packed[0]["shape"], sum(alike), numpy.int64)
    for one in packed:
        if not isinstance(one["entries"], int):
            total += numpy.array(unpack_kept(one), numpy.int64)
    return [[round(entries / len(packed), 3) for entries in layer] for layer in total.tolist()]


def write_results(found: Iterable[layout.Cell], folder: Path) -> Responses:
    """Merge the journals of ``folder`` into results/DIGEST.json and provenance/DIGEST.json of each cell.

    A result has the same bytes for the same answers, whatever happened on the way; provenance also tells
    where, when and by which commands they came about.  Workers that end together take turns, so the last
    one writes what all of them answered.
    """
    with locked(folder / "results.lock"), journal.uncollected():
        responses = load_folder(folder)
        for part in ("results", "provenance"):
            layout.sweep(folder / part)
        for cell in found:
            name = f"{cell.digest}.json"
            write_atomic(folder / "results" / name, pretty_rows(summarise(cell, responses), "answers"))
            write_atomic(folder / "provenance" / name, pretty(_history(cell, responses)))
    return responses


def _history(cell: layout.Cell, responses: Responses) -> dict[str, Any]:
    runs = list(responses.runs.get(cell.digest, {}).values())
    started = sorted(run["started"] for run in runs)
    return {
        "digest": cell.digest,
        "circumstances": responses.environment(cell.digest),
        "commands": sorted({" ".join(masking.command(run["command"])) for run in runs}),
        "hosts": len({run.get("host") for run in runs}),
        "first_started": started[0] if started else None,
        "last_started": started[-1] if started else None,
    }


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
            low, mean, high = kept_summary(record["kept"])
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
