"""Claims about attention and keys: measured on the embedded model, stored, and read back without it.

STORE/claims/BENCHMARK.json holds ``quantities`` by sample index. A call measures what is missing; values of
another model, another data set or an older definition are dropped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.analysis.resampling import interval
from kvbench.claims.cells import ABOVE, BELOW, MODEL, QUESTIONS
from kvbench.claims.row import Claim, Estimate, Hole, Region, Test
from kvbench.errors import UserError
from kvbench.store.files import pretty, write_atomic

_VERSION = 2  # raise when the meaning of a quantity changes: all are then measured again
Values = Mapping[str, Any]  # one sample: page, and quantities by name


def path(store: Path, benchmark: str) -> Path:
    """Where a benchmark's values lie."""
    return store / "claims" / f"{benchmark}.json"


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
        raise UserError(f"cannot read {file}: delete it and run `kvbench claims` again.") from error
    return known if of is None or known["of"] == of else {"of": of, "samples": {}}


def load(store: Path) -> list[Values]:
    """The stored samples of all benchmarks, in their order."""
    found = []
    for benchmark in QUESTIONS:
        samples = read(path(store, benchmark))["samples"]
        found += [samples[index] for index in sorted(samples, key=int)]
    return found


def missing(store: Path, config: dict[str, Any], model: dict[str, Any], limit: int | None) -> list[int]:
    """Sample indices of a benchmark that have no value yet."""
    from kvbench.embedded.sets import SAMPLES

    known = read(path(store, config["name"]), settings(config, model))["samples"]
    count = min(limit or config["default_limit"], SAMPLES)
    return [index for index in range(count) if str(index) not in known]


def settings(config: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """What the values of a benchmark depend on."""
    return {
        "version": _VERSION,
        "model": {key: model[key] for key in ("name", "revision", "dtype")},
        "benchmark": {key: config[key] for key in ("name", "revision")},
    }


def measure(store: Path, limit: int | None = None, say: Callable[[str], None] = print) -> None:
    """Measure and store what is missing; the model is loaded only then.

    limit: samples a benchmark, as in ``kvbench run``. Raises UserError when the store cannot be written.
    """
    from kvbench.commands.parsing import resolved

    configs = resolved([f"model={MODEL}", f"benchmark={','.join(QUESTIONS)}"])
    (model,) = configs["model"]
    todo = [(config, missing(store, config, model, limit)) for config in configs["benchmark"]]
    if not any(indices for _, indices in todo):
        return
    from kvbench.run import load_model

    adapter = load_model(model)
    for config, indices in todo:
        fill(path(store, config["name"]), settings(config, model), of_samples(adapter, config, indices))
        say(f"measured {len(indices)} prompts of {config['name']}")


def fill(file: Path, of: dict[str, Any], found: Iterator[tuple[int, Values]]) -> None:
    """Add samples to a stored document, one by one, so that a stopped call loses one at most."""
    document = read(file, of)
    for index, values in found:
        finite = {key: None if value != value else value for key, value in values.items()}
        document["samples"][str(index)] = finite
        write_atomic(file, pretty(document))


def of_samples(adapter: Any, config: dict[str, Any], indices: list[int]) -> Iterator[tuple[int, Values]]:
    """(index, values) of these samples: one prefill each."""
    if not indices:
        return
    from kvbench import benchmarks, engine
    from kvbench.claims.quantities import quantities

    evidence = pages(config["name"])
    samples = benchmarks.load(config).samples(max(indices) + 1)
    for index in indices:
        inputs = adapter.prepare(samples[index].text, samples[index].images())
        text = inputs.length - int(inputs.visual_mask.nonzero()[-1]) - 1
        start = time.perf_counter()
        prompt = engine.prefill(adapter, inputs, window=text)
        spent = 1000 * (time.perf_counter() - start)
        about = evidence[index]
        tiles = about["evidence"]
        found = quantities(prompt, tiles["label"], tiles["value"])
        yield index, {"page": about["page"], "prefill": spent, **found}


def pages(benchmark: str) -> list[dict[str, Any]]:
    """By sample index, the page a question is about and the tiles that answer it."""
    import pandas

    from kvbench.embedded import sets

    file = sets.folder() / benchmark / f"{sets.SPLITS[benchmark]}.parquet"
    return [json.loads(text) for text in pandas.read_parquet(file, columns=["kvbench"])["kvbench"]]


def mean(figure: Callable[[Values], float]) -> Callable[[list[Values]], Estimate]:
    """Mean of a figure over samples, pages resampled; samples where it is not defined are left out."""

    def estimate(samples: list[Values]) -> Estimate:
        if not samples:
            raise Hole("not measured yet")
        known = [(figure(values), values["page"]) for values in samples if _defined(figure, values)]
        if not known:
            raise Hole("no sample has it")
        series, clusters = np.array([value for value, _ in known]), [page for _, page in known]
        low, high = interval(series, clusters=clusters)
        return Estimate(float(series.mean()), low, high, len(series), len(set(clusters)))

    return estimate


def _defined(figure: Callable[[Values], float], values: Values) -> bool:
    try:
        return math.isfinite(figure(values))
    except TypeError:  # a quantity that this sample does not have is stored as null
        return False


def minus(first: str, second: str) -> Callable[[list[Values]], Estimate]:
    """Mean difference of two quantities of the same samples."""
    return mean(lambda values: values[first] - values[second])


def lowest_layer(name: str) -> Callable[[list[Values]], Estimate]:
    """A quantity in the layer where its mean is lowest."""

    def estimate(samples: list[Values]) -> Estimate:
        if not samples:
            raise Hole("not measured yet")
        layer = int(np.argmin(np.mean([values[name] for values in samples], axis=0)))
        return mean(lambda values: values[name][layer])(samples)

    return estimate


def thirds(name: str, first: int, second: int | None = None) -> Callable[[list[Values]], Estimate]:
    """A quantity's mean in one third of the layers (0, 1, 2), minus that in another or in both others."""

    def figure(values: Values) -> float:
        parts = [float(part.mean()) for part in np.array_split(np.array(values[name]), 3)]
        others = [parts[k] for k in range(3) if k != first] if second is None else [parts[second]]
        return parts[first] - sum(others) / len(others)

    return mean(figure)


MEASURE = "claims"
ATTENTION = "difference in % of the attention:"


def tests() -> list[Test]:
    """BACON's motivation and ECOKV's analyses."""
    emergent = "figure 2(b), no figure printed"
    found: list[tuple[str, str, str, str, Region, int, Callable[[list[Values]], Estimate]]] = [
        (
            "BACON",
            "the last query attends the answer's tiles more than earlier queries of the question do",
            emergent,
            ATTENTION,
            ABOVE,
            3,
            minus("answer_last", "answer_earlier"),
        ),
        (
            "BACON",
            "so it does the tiles of label and answer together",
            emergent,
            ATTENTION,
            ABOVE,
            3,
            minus("evidence_last", "evidence_earlier"),
        ),
        (
            "BACON",
            "its 16 highest hold more of the evidence than the window mean's",
            "figure 2(c), no figure printed",
            "difference in recall:",
            ABOVE,
            3,
            minus("recall_last", "recall_window"),
        ),
        (
            "BACON",
            "most tiles it attends strongly are not evidence (as many highest as there is evidence)",
            "9 % evidence, about 70 % irrelevant (figure 3(a))",
            "share:",
            Region(low=0.5),
            3,
            mean(lambda values: values["noise"]),
        ),
        (
            "BACON",
            "evidence is coherent: more of its neighbours are strong too than of noise's",
            "figure 3(b), no figure printed",
            "difference in share:",
            ABOVE,
            3,
            minus("coherence_evidence", "coherence_noise"),
        ),
        (
            "BACON",
            "evidence is persistent: strong in the next layer too, more often than noise",
            "figure 3(c), no figure printed",
            "difference in share:",
            ABOVE,
            3,
            minus("persistence_evidence", "persistence_noise"),
        ),
        (
            "BACON",
            "no extra time: selection with bacon minus without",
            "28.60 → 28.68 in all (table 5, 32,000 tokens)",
            "% of the prefill:",
            Region(high=1),
            2,
            mean(lambda values: 100 * (values["select_bacon"] - values["select_base"]) / values["prefill"]),
        ),
        (
            "ECOKV",
            "keys are similar in every layer (the lowest layer)",
            "above 0.4 in all (section 4, figure 2)",
            "mean cosine:",
            Region(low=0.4),
            3,
            lowest_layer("cosine"),
        ),
        (
            "ECOKV",
            "the first layer's keys are nearly parallel",
            "about 1.0 (section 4, figure 2)",
            "mean cosine:",
            Region(low=0.9),
            3,
            mean(lambda values: values["cosine"][0]),
        ),
        (
            "ECOKV",
            "importance and diversity correlate weakly to moderately",
            "low to moderate, in words (section 6.4, figure 4)",
            "Spearman's ρ:",
            Region(-0.5, 0.5),
            3,
            mean(lambda values: float(np.mean(values["correlation"]))),
        ),
        (
            "ECOKV",
            "they do least in the middle third of the layers",
            "lower in intermediate layers (section 6.4)",
            "ρ, middle minus the others:",
            BELOW,
            3,
            thirds("correlation", 1),
        ),
        (
            "ECOKV",
            "redundancy is higher in the first third than in the middle one",
            "in words (appendix B.5, figures 7, 8)",
            "difference of λ:",
            ABOVE,
            3,
            thirds("weight", 0, 1),
        ),
        (
            "ECOKV",
            "redundancy rises again in the last third",
            "in words (appendix B.5, figures 7, 8)",
            "difference of λ:",
            ABOVE,
            3,
            thirds("weight", 2, 1),
        ),
    ]
    return [
        (Claim(paper, text, figure, what, region, MEASURE, digits), compute)
        for paper, text, figure, what, region, digits, compute in found
    ]
