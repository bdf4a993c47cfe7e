"""Which visual tokens every cell keeps, worked out again for a few samples of a store.

A journal holds counts, not positions, so a run costs nothing more for them. ``compute`` loads the model,
prefills a sample once and selects for every cell; the result must have the counts that the answers were
stored with, or nothing is written. What is stored, ``kvbench.store.retained`` says.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvbench import store
from kvbench.errors import UserError
from kvbench.store.files import pretty
from kvbench.store.retained import file_of, read
from kvbench.support.contents import named


def compute(root: Path, limit: int, device: str = "auto", log: Callable[[str], None] = print) -> int:
    """Fill in what is missing for the samples that ``limit`` takes of every group; returns those computed.

    Raises UserError when the store was filled by another version of model or method.
    """
    groups: dict[str, list[store.Cell]] = {}
    for cell in store.cells(root):
        parts = [cell.config[part] for part in ("model", "benchmark", "seed", "prompt")]
        groups.setdefault(store.canonical(parts), []).append(cell)
    done = 0
    for cells in groups.values():
        responses = store.load_folder(cells[0].folder)
        if any(named(cell.config) for cell in cells):
            log(f"{cells[0].model} / {cells[0].benchmark}: no overlay where model or method reads a file.")
            cells = [cell for cell in cells if not named(cell.config)]
            if not cells:
                continue
        first = (store.order(cells[0].folder, cells[0].config["benchmark"]) or [])[:limit]
        todo = {index: left for index in sorted(first) if (left := _missing(cells, responses, index))}
        if todo:
            done += _group(cells[0], todo, responses, device, log)
    return done


def _missing(cells: list[store.Cell], responses: store.Responses, index: int) -> list[store.Cell]:
    """Compressed cells that have answered the sample and lack its shares."""
    known = (read(cells[0].folder, index) or {"cells": {}})["cells"]
    return [
        cell
        for cell in cells
        if cell.budget is not None and cell.digest not in known and index in responses.answers[cell.digest]
    ]


def _group(
    head: store.Cell,
    todo: dict[int, list[store.Cell]],
    responses: store.Responses,
    device: str,
    log: Callable[[str], None],
) -> int:
    from kvbench.analysis.scoring import benchmark_config
    from kvbench.identity import revisions
    from kvbench.running import run

    model, data = head.config["model"], head.config["benchmark"]
    now = {"data": revisions.data(data.get("data") or "")}
    now["weights"] = revisions.checkpoint(model.get("weights"))
    if model["adapter"] == "embedded":
        now["weights"] = revisions.weights(model["weights"])
    for name, config in (("weights", model), ("data", data)):
        if now[name] is not None and now[name] != config["revision"]:
            raise UserError(
                f"{head.model} / {head.benchmark} was answered with other {name} ({config['revision']}) than "
                f"there are now ({now[name]}): run into another store=DIR."
            )
    benchmark = run.load_benchmark(benchmark_config(head))
    samples = {sample.index: sample for sample in benchmark.at(list(todo))}
    pictures = {index: sample.images() for index, sample in samples.items()}
    if not any(pictures.values()):
        return 0  # text alone has no picture to lay tokens over
    adapter = run.load_model({**head.config["model"], "device": device})
    for number, (index, images) in enumerate(pictures.items(), 1):
        log(f"{head.model} / {head.benchmark}: retained tokens of sample {number} of {len(pictures)}")
        grids = adapter.visual_grids(images)
        if grids is None:
            log(f"{head.model} does not say where its visual tokens lie: no overlay for it.")
            return 0
        shares = {}
        for text, cells in _by_prompt(samples[index], todo[index], responses).items():
            shares.update(_shares(adapter, benchmark, index, text, images, cells, responses))
        known = read(head.folder, index) or {"cells": {}}
        document = {"index": index, "grids": grids, "cells": {**known["cells"], **shares}}
        store.write_atomic(file_of(head.folder, index), pretty(document))
    return len(pictures)


def _by_prompt(
    sample: Any, cells: list[store.Cell], responses: store.Responses
) -> dict[str, list[store.Cell]]:
    """Cells by the text of the prompt they answered: of a second stage, each has its own reasoning in it."""
    found: dict[str, list[store.Cell]] = {}
    for cell in cells:
        record = responses.answers[cell.digest][sample.index]
        found.setdefault(sample.final(record.get("reasoning")), []).append(cell)
    return found


def _shares(
    adapter: Any,
    benchmark: Any,
    index: int,
    text: str,
    images: list,
    cells: list[store.Cell],
    responses: store.Responses,
) -> dict[str, str]:
    """Digest -> shares in base64. Raises UserError when the counts are not those of the stored answers."""
    import torch

    from kvbench.engine.generate import observe
    from kvbench.engine.prefill import EXTRAS, prefill
    from kvbench.methods.select import kept_mask
    from kvbench.running import run

    methods = [run.build_method(cell.config["method"], cell.budget) for cell in cells]
    extras = frozenset().union(*(method.extras for method in methods)) & EXTRAS
    shares = {}
    with torch.inference_mode():
        inputs = benchmark.prepare(adapter, text, images)
        window = max(method.window for method in methods)
        observation = observe(prefill(adapter, inputs, window=window, extras=extras), adapter.head_scores)
        for cell, method in zip(cells, methods, strict=True):
            mask = kept_mask(method, observation)
            stored = store.unpack_kept(responses.answers[cell.digest][index]["kept"])
            if mask.sum(-1).tolist() != stored:
                raise UserError(
                    f"{cell.method} at budget {cell.budget} keeps other numbers of entries of sample "
                    f"{index} of {cell.benchmark} now than when it was answered: model or method "
                    "changed; run into another store=DIR."
                )
            share = mask[..., inputs.visual_mask.to(mask.device)].float().mean((0, 1))
            values = (share * 255).round().to(torch.uint8)
            shares[cell.digest] = base64.b64encode(values.cpu().numpy().tobytes()).decode("ascii")
    return shares
