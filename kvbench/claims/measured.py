"""Attention and keys of the embedded model: measured, stored, and read back without the model.

STORE/claims/BENCHMARK.json holds ``quantities`` by sample index. A call measures what is missing; values of
another model, another data set or an older definition are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvbench.claims.cells import MODEL, MODELS, QUESTIONS, TEXT
from kvbench.observations import FOLDER
from kvbench.observations.stored import Values, fill, in_order, read

_VERSION = 3  # raise when the meaning of a quantity changes: all are then measured again


def path(store: Path, benchmark: str) -> Path:
    """Where a benchmark's values lie."""
    return store / "claims" / f"{benchmark}.json"


def load(store: Path) -> list[Values]:
    """The stored samples of all benchmarks, in their order; none of an older definition."""
    documents = [read(path(store, benchmark)) for benchmark in QUESTIONS]
    known = [document for document in documents if (document["of"] or {}).get("version") == _VERSION]
    return [values for document in known for values in in_order(document)]


def observed(store: Path) -> list[Values]:
    """The prompts of real text that ``kvbench observe`` stored; none of an older definition."""
    from kvbench.observations.stored import VERSION

    document = read(store / FOLDER / MODELS[TEXT] / f"{TEXT}.json")
    return in_order(document) if (document["of"] or {}).get("version") == VERSION else []


def missing(store: Path, config: dict[str, Any], model: dict[str, Any], limit: int | None) -> list[int]:
    """Sample indices of a benchmark that have no value yet, in the order of limits."""
    from kvbench.benchmarks.base import spread
    from kvbench.observations.pages import pages

    known = read(path(store, config["name"]), settings(config, model))["samples"]
    order = spread({index: page["page"] for index, page in enumerate(pages(config["name"]))})
    return [index for index in order[: limit or config["default_limit"]] if str(index) not in known]


def settings(config: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """What the values of a benchmark depend on."""
    return {
        "version": _VERSION,
        "model": {key: model[key] for key in ("name", "revision", "dtype")},
        "benchmark": {key: config[key] for key in ("name", "revision")},
    }


def measure(store: Path, limit: int | None = None, log: Callable[[str], None] = print) -> None:
    """Measure and store what is missing; the model is loaded only then.

    limit: samples a benchmark, as in ``kvbench run``. Raises UserError when the store cannot be written.
    """
    from kvbench.planning.parsing import resolved

    configs = resolved([f"model={MODEL}", f"benchmark={','.join(QUESTIONS)}"])
    (model,) = configs["model"]
    todo = [(config, missing(store, config, model, limit)) for config in configs["benchmark"]]
    if not any(indices for _, indices in todo):
        return
    from kvbench.running.run import load_model

    adapter = load_model(model)
    for config, indices in todo:
        fill(path(store, config["name"]), settings(config, model), of_samples(adapter, config, indices))
        log(f"measured {len(indices)} prompts of {config['name']}")


def of_samples(adapter: Any, config: dict[str, Any], indices: list[int]) -> Iterator[tuple[int, Values]]:
    """(index, values) of these samples: one prefill each."""
    if not indices:
        return
    from kvbench import benchmarks, engine
    from kvbench.claims.quantities import quantities
    from kvbench.observations.pages import pages

    evidence = pages(config["name"])
    for turn, sample in enumerate(benchmarks.load(config).at(indices)):
        index = sample.index
        inputs = adapter.prepare(sample.text, sample.images())
        text = inputs.length - int(inputs.visual_mask.nonzero()[-1]) - 1
        if turn == 0:
            engine.prefill(adapter, inputs, window=text)  # the first one warms up
        start = time.perf_counter()
        prompt = engine.prefill(adapter, inputs, window=text)
        spent = 1000 * (time.perf_counter() - start)
        about = evidence[index]
        tiles = about["evidence"]
        found = quantities(prompt, tiles["label"], tiles["value"])
        yield index, {"page": about["page"], "prefill": spent, **found}
