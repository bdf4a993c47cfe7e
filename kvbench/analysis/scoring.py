"""Score a store: answers in, scores/DIGEST.json and results.csv out.

A cell is scored when it has answered every sample that any cell of its model and benchmark has; anything
less would compare different questions. A score remembers what it was computed from, so a second call
recomputes nothing (and imports neither torch nor lmms-eval).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from kvbench.analysis import Missing
from kvbench.analysis.results import results_csv
from kvbench.benchmarks import fidelity, fit, folder
from kvbench.benchmarks.base import Benchmark, Scores, listed
from kvbench.benchmarks.captions import java
from kvbench.errors import UserError, first_line
from kvbench.planning.config import benchmark_file
from kvbench.store import (
    Cell,
    Responses,
    cells,
    check_versions,
    earlier,
    load_folder,
    write_atomic,
)
from kvbench.store.files import storage_error
from kvbench.store.journal import uncollected
from kvbench.store.layout import journals
from kvbench.store.responses import kept_overall
from kvbench.support.words import counted

LARGE = 1 << 29  # bytes of journals; below, starting processes takes longer than it saves
WORKERS = 2  # each holds the records of one folder
_VERSION = 3  # raise when the meaning of a score changes: every cell is then scored again


def benchmark_config(cell: Cell) -> dict[str, Any]:
    """The benchmark's full config: what names the cell, as stored, and the metrics from conf/benchmark."""
    config = {**benchmark_file(cell.benchmark), **cell.config["benchmark"]}
    return config | folder.scoring(config["score"]) if config.get("kind") == "folder" else config


def groups(found: Iterable[Cell]) -> dict[tuple[Any, ...], list[Cell]]:
    """Cells that answer the same questions: one list per model, benchmark, seed and prompt."""
    result: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in found:
        result[cell.model, cell.benchmark, cell.seed, cell.prompt].append(cell)
    return result


def score_store(store: Path, folder: Path | None = None) -> list[str]:
    """Score every complete cell, or those of one (model, benchmark) ``folder``; returns warnings.

    Raises UserError when the store is empty or cannot be written.
    """
    found = [cell for cell in cells(store) if folder is None or cell.folder == folder]
    old = earlier.of_store(store)
    if not found:
        if old:
            return [Missing(old)]
        raise UserError(
            f"there is nothing to score in {store}: name a store that `kvbench run` wrote, store=DIR."
        )
    warnings: list[str] = []
    check_versions(found, store)
    by_folder: dict[Path, list[Cell]] = defaultdict(list)
    for cell in found:
        by_folder[cell.folder].append(cell)
    for warned in _each_folder(by_folder):
        warnings += warned
    try:
        write_atomic(store / "results.csv", results_csv(store))
    except UserError as error:  # it can be read all the same: what is stored is scored
        warnings.append(f"results.csv is not written: {error}")
    if old:
        warnings.append(old)
    return list(dict.fromkeys(warnings))


def _each_folder(by_folder: Mapping[Path, list[Cell]]) -> Iterator[list[str]]:
    """``_score_folder`` of every folder in order; a few at once in a large store."""
    size = sum(path.stat().st_size for folder in by_folder for path in journals(folder))
    workers = min(len(by_folder), os.cpu_count() or 1, WORKERS)
    if size < LARGE or workers < 2:
        yield from map(_score_folder, by_folder.values())
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_score_folder, by_folder.values())


@uncollected()
def _score_folder(found: list[Cell]) -> list[str]:
    """Score the cells of one folder, whose journals are read once; returns warnings."""
    warnings: list[str] = []
    responses: Responses | None = None
    for group in groups(found).values():
        try:
            responses = responses or load_folder(group[0].folder)
            warnings += _score_group(group, responses)
        except UserError as error:
            for cell in group:
                _forget(cell)  # an older score beside the others' new ones would mislead
            warnings.append(Missing(f"{group[0].model} on {group[0].benchmark} is not scored: {error}"))
    return warnings


def _score_group(group: list[Cell], responses: Responses) -> list[str]:
    answers = {cell.digest: responses.answers.get(cell.digest, {}) for cell in group}
    known = {index for cell in group for index in (*answers[cell.digest], *responses.failed(cell.digest))}
    left_out = responses.excluded()
    indices = sorted(known - left_out.keys()) if any(answers.values()) else []
    n = len(indices)
    warnings: list[str] = list(responses.damaged)
    complete = []
    asked = (responses.asked((group[0].seed, group[0].prompt)) or n) - len(known & left_out.keys())
    if 0 < n < asked:
        warnings.append(
            Missing(
                f"{group[0].model} on {group[0].benchmark}: {n} of {asked} samples are answered; "
                "run the same command again to fill them."
            )
        )
    for cell in group:
        missing = [index for index in indices if index not in answers[cell.digest]]
        if n and not missing:
            complete.append(cell)
            continue
        records = responses.failed(cell.digest)
        failed = [index for index in sorted(records) if index not in left_out]
        why = (
            f"samples {listed(failed)} failed"
            if failed
            else f"samples {listed(missing)} are not answered yet"
        )
        why = why if n else "no sample is answered yet"
        if failed and all(records[index].get("permanent") for index in failed):
            why += (
                " for good; leave them out of all cells: the same command with benchmark.unreadable=exclude."
            )
        else:
            why += "; run the same command again to fill them."
        warnings.append(Missing(f"{name_of(cell)} is not scored: {why}"))
        _forget(cell)
    full = next((cell for cell in complete if cell.method == "fullkv"), None)
    cfg = benchmark_config(group[0])
    given = {cell.digest: _Given.of(answers[cell.digest], indices) for cell in complete}
    reference = given[full.digest] if full else None
    keys = {digest: _key(cfg, one, reference) for digest, one in given.items()}
    stale = [cell for cell in complete if _stored_key(cell) != keys[cell.digest]]
    if stale:
        scored = _scores(cfg, {cell.digest: given[cell.digest] for cell in stale}, reference)
        for cell in stale:
            scores = scored[cell.digest]
            scores.warnings += fit.sentences(cell.benchmark, given[cell.digest].fitted)
            scores.warnings += _said(group[0].benchmark, left_out)
            key = None if scores.failed else keys[cell.digest]
            kept = dict(zip(("min", "mean", "max"), kept_overall(given[cell.digest].kept), strict=True))
            document = {"digest": cell.digest, "key": key, "kept": kept}
            write_atomic(score_file(cell), _compact({**document, **scores.to_dict()}))
    for cell in complete:
        warnings += load_scores(cell)[0].warnings
    return warnings


def _said(benchmark: str, left_out: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """What is said under a table of samples that no cell counts."""
    if not left_out:
        return []
    count = counted(len(left_out), "sample")
    return [f"{benchmark}: {count} left out of all cells, as nothing can answer: {listed(sorted(left_out))}."]


def _scores(
    cfg: Mapping[str, Any],
    stale: Mapping[str, _Given],
    reference: _Given | None,
) -> dict[str, Scores]:
    """Scores by digest of the cells that have none yet."""
    from kvbench import benchmarks
    from kvbench.identity import revisions

    now = revisions.data(str(cfg.get("data")))
    if now is not None and cfg.get("revision") not in (None, now):
        raise UserError(
            f"its questions were answered with other data ({cfg['revision']}) than {cfg['data']} holds now "
            f"({now}): restore them, or run into another store=DIR."
        )
    benchmark: Benchmark = benchmarks.load(cfg)
    indices = next(iter(stale.values())).indices
    if indices[-1] >= benchmark.size():
        raise UserError(
            f"{benchmark.name} has {benchmark.size()} samples now, but sample {indices[-1]} is answered: "
            "data changed."
        )

    def by_index(values: list[Any]) -> dict[int, Any]:
        return dict(zip(indices, values, strict=True))

    try:
        return benchmark.score_cells(
            {digest: by_index(one.texts) for digest, one in stale.items()},
            indices,
            reference=by_index(reference.texts) if reference is not None else None,
            tokens={digest: by_index(one.tokens) for digest, one in stale.items()},
            reference_tokens=by_index(reference.tokens) if reference is not None else None,
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(  # task code over data of another form than it expects: one benchmark, not the store
            f"the task's code fails on a row ({type(error).__name__}: {first_line(error)}): correct it."
        ) from error


class _Given(NamedTuple):
    """The answers of a complete cell, sample by sample."""

    indices: list[int]
    texts: list[str]
    tokens: list[list[int]]
    kept: list[dict[str, Any]]
    fitted: list[dict[str, int]]  # what of the prompt was left out, see kvbench.benchmarks.fit

    @classmethod
    def of(cls, answers: Mapping[int, Mapping[str, Any]], indices: list[int]) -> _Given:
        given = cls(indices, [], [], [], [])
        for index in indices:  # one pass: in a large store most of the time is waiting for memory
            record = answers[index]
            given.texts.append(record["text"])
            given.tokens.append(record["tokens"])
            given.kept.append(record["kept"])
            given.fitted.append(record.get("fitted") or {})
        return given


def _key(cfg: Mapping[str, Any], given: _Given, reference: _Given | None) -> str:
    """Digest of all that a score depends on, the presence of Java included."""
    facts = {
        "version": _VERSION,
        "fidelity": fidelity.VERSION,
        "lmms_eval": importlib.metadata.version("lmms-eval"),
        "java": "java" not in (cfg.get("needs") or []) or java() is not None,
        "benchmark": {
            key: value for key, value in cfg.items() if key not in ("title", "default_limit", "scale")
        },
        "indices": given.indices,
        "answers": given.tokens,
        "texts": given.texts,
        "reference": reference.tokens if reference is not None else None,
    }
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def score_file(cell: Cell) -> Path:
    """Where a cell's scores lie."""
    return cell.folder / "scores" / f"{cell.digest}.json"


def _forget(cell: Cell) -> None:
    """Remove a score over fewer samples than the other cells have: side by side they would mislead."""
    try:
        score_file(cell).unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(score_file(cell), error) from error


def load_scores(cell: Cell) -> tuple[Scores, dict[str, float]] | None:
    """Scores and realised entries of a cell; None when it is not scored or the file is torn."""
    try:
        data = _read(cell)
        return Scores.from_dict(data), data["kept"]
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _stored_key(cell: Cell) -> str | None:
    try:
        return _read(cell)["key"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def name_of(cell: Cell) -> str:
    """``snapkv at budget 64 on docqa_mini``."""
    budget = "" if cell.budget is None else f" at budget {cell.budget}"
    return f"{cell.method}{budget} on {cell.benchmark}"


def _read(cell: Cell) -> dict[str, Any]:
    """The stored score of a cell.  Raises FileNotFoundError, or ValueError when the file is torn."""
    return orjson.loads(score_file(cell).read_bytes())


def _compact(document: Any) -> bytes:
    """One line of JSON: a large store has many values a cell."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(document, option=options)
