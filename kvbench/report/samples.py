"""What the sample browser shows of a model on a benchmark, small enough for a thousand samples."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from kvbench.analysis.results import Entry
from kvbench.analysis.scoring import benchmark_config
from kvbench.errors import UserError
from kvbench.report import Options
from kvbench.store import load_folder, retained

QUALITY = 70  # of the pictures' JPEG


def groups(found: Sequence[Entry], options: Options, pictures: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One dict per model, benchmark, seed and prompt: title, and ``data`` for the script.

    Pictures are added to ``pictures``, data URIs by digest: samples, models and stores share them.
    """
    alike: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in found:
        cell = entry.cell
        alike.setdefault((cell.model, cell.benchmark, cell.seed, cell.prompt), []).append(entry)
    for entries in alike.values():
        head = entries[0].cell
        responses = load_folder(head.folder)
        cfg = benchmark_config(head)
        indices = sorted({index for e in entries for index in responses.answers[e.cell.digest]})
        shown = indices[: options.samples]
        notes = [f"the first {len(shown)} of {len(indices)} samples"] if len(shown) < len(indices) else []
        questions, grids = {}, {}
        try:
            questions, images, references = _data(cfg, shown, options)
        except UserError as error:
            notes.append(f"questions and pictures are missing: {error}")
            images, references = {}, {}
        for index in shown:
            known = retained.read(head.folder, index)
            if known is not None:
                grids[index] = known
        metric = cfg.get("metric", "score")
        yield {
            "title": f"{cfg.get('title') or head.benchmark} · {head.model}"
            + ("" if head.seed == 0 else f" · seed {head.seed}")
            + ("" if head.prompt == "default" else f" · prompt {head.prompt}"),
            "data": {
                "metric": metric,
                "notes": notes,
                "overlay": bool(grids),
                "cells": [
                    {
                        "label": e.label + ("" if e.cell.budget is None else f" · {e.cell.budget}"),
                        "digest": e.cell.digest,
                        "full": e.cell.budget is None,
                    }
                    for e in entries
                ],
                "samples": [
                    _sample(index, entries, responses, metric, questions, references, grids)
                    | ({"p": [_kept(uri, pictures) for uri in images[index]]} if index in images else {})
                    for index in shown
                ],
            },
        }


def _kept(uri: str, pictures: dict[str, str]) -> str:
    """Keep a picture once; its digest."""
    digest = hashlib.sha256(uri.encode("ascii")).hexdigest()[:16]
    pictures[digest] = uri
    return digest


def _sample(index, entries, responses, metric, questions, references, grids) -> dict[str, Any]:
    """Answers as numbers into a list of distinct texts: most cells agree."""
    texts: list[str] = []
    which: list[int | None] = []
    name = str(index)
    for entry in entries:
        record = responses.answers[entry.cell.digest].get(index)
        if record is None:
            which.append(None)
            continue
        name = record["sample"]
        if record["text"] not in texts:
            texts.append(record["text"])
        which.append(texts.index(record["text"]))
    sample = {
        "i": index,
        "id": str(name),
        "q": questions.get(index),
        "r": references.get(index, []),
        "t": texts,
        "w": which,
        "s": [_score(entry, metric, index) for entry in entries],
    }
    reasons = [responses.answers[e.cell.digest].get(index, {}).get("reasoning") for e in entries]
    if any(reasons):
        sample["c"] = reasons
    if index in grids:
        cells = grids[index]["cells"]
        sample["g"] = grids[index]["grids"]
        sample["k"] = [cells.get(entry.cell.digest) for entry in entries]
    return sample


def _score(entry: Entry, metric: str, index: int) -> float | None:
    values = entry.scores.per_sample.get(metric, {}) if entry.scores is not None else {}
    value = values.get(index)
    return round(value, 4) if value is not None and math.isfinite(value) else None


def _data(cfg: dict, indices: Sequence[int], options: Options) -> tuple[dict, dict, dict]:
    """Questions, pictures as data URIs and reference answers by sample index."""
    from kvbench import benchmarks

    benchmark = benchmarks.load(cfg)
    wanted = [index for index in indices if index < benchmark.size()]
    samples = {sample.index: sample for sample in benchmark.at(wanted)}
    pictures = {}
    for index in wanted[: options.images]:
        uris = [_jpeg(image, options.pixels) for image in _stills(samples[index].images())]
        if uris:
            pictures[index] = uris
    return {i: samples[i].text for i in wanted}, pictures, benchmark.references(wanted)


def _stills(visuals: Sequence[Any]) -> list[Any]:
    """Pictures as they are; of a clip the first, middle and last frame."""
    from kvbench.models.content import Video

    found: list[Any] = []
    for visual in visuals:
        if isinstance(visual, Video):
            last = len(visual.frames) - 1
            found += [visual.frames[place] for place in sorted({0, last // 2, last})]
        else:
            found.append(visual)
    return found


def _jpeg(image: Any, pixels: int) -> str:
    """A small JPEG as a data URI; the longer side has at most ``pixels``."""
    image = image.convert("RGB")
    image.thumbnail((pixels, pixels))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")


def embedded(value: Any) -> str:
    """JSON that may stand inside a ``<script>``: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
