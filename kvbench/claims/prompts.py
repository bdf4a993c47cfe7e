"""Claims about attention and keys, from the values that ``measured`` stores; no model is needed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kvbench.analysis.resampling import interval
from kvbench.claims.cells import ABOVE, BELOW
from kvbench.claims.measured import Values
from kvbench.claims.row import Claim, Estimate, Hole, Region, Test


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


Spec = tuple[str, str, str, Region, int, Callable[[list[Values]], Estimate]]


def attention() -> list[Test]:
    """BACON's motivation."""
    emergent = "figure 2(b), no figure printed"
    found: list[Spec] = [
        (
            "the last query attends the answer's tiles more than earlier queries of the question do",
            emergent,
            ATTENTION,
            ABOVE,
            3,
            minus("answer_last", "answer_earlier"),
        ),
        (
            "so it does the tiles of label and answer together",
            emergent,
            ATTENTION,
            ABOVE,
            3,
            minus("evidence_last", "evidence_earlier"),
        ),
        (
            "its 16 highest hold more of the evidence than the window mean's",
            "figure 2(c), no figure printed",
            "difference in recall:",
            ABOVE,
            3,
            minus("recall_last", "recall_window"),
        ),
        (
            "most tiles it attends strongly are not evidence (as many highest as there is evidence)",
            "9 % evidence, about 70 % irrelevant (figure 3(a))",
            "share:",
            Region(low=0.5),
            3,
            mean(lambda values: values["noise"]),
        ),
        (
            "evidence is coherent: more of its neighbours are strong too than of noise's",
            "figure 3(b), no figure printed",
            "difference in share:",
            ABOVE,
            3,
            minus("coherence_evidence", "coherence_noise"),
        ),
        (
            "evidence is persistent: strong in the next layer too, more often than noise",
            "figure 3(c), no figure printed",
            "difference in share:",
            ABOVE,
            3,
            minus("persistence_evidence", "persistence_noise"),
        ),
        (
            "no extra time: selection with bacon minus without",
            "28.60 → 28.68 in all (table 5, 32,000 tokens)",
            "% of the prefill:",
            Region(high=1),
            2,
            mean(lambda values: 100 * (values["select_bacon"] - values["select_base"]) / values["prefill"]),
        ),
    ]
    return _claims("BACON", found, MEASURE)


def keys(command: str = MEASURE, where: str = "") -> list[Test]:
    """ECOKV's analyses. command: what measures the samples; where: ends each claim, to tell them apart."""
    found: list[Spec] = [
        (
            "keys are similar in every layer (the lowest layer)",
            "above 0.4 in all (section 4, figure 2)",
            "mean cosine:",
            Region(low=0.4),
            3,
            lowest_layer("cosine"),
        ),
        (
            "the first layer's keys are nearly parallel",
            "about 1.0 (section 4, figure 2)",
            "mean cosine:",
            Region(low=0.9),
            3,
            mean(lambda values: values["cosine"][0]),
        ),
        (
            "importance and diversity correlate weakly to moderately",
            "low to moderate, in words (section 6.4, figure 4)",
            "Spearman's ρ:",
            Region(-0.5, 0.5),
            3,
            mean(lambda values: float(np.mean(values["correlation"]))),
        ),
        (
            "they do least in the middle third of the layers",
            "lower in intermediate layers (section 6.4)",
            "ρ, middle minus the others:",
            BELOW,
            3,
            thirds("correlation", 1),
        ),
        (
            "redundancy is higher in the first third than in the middle one",
            "in words (appendix B.5, figures 7, 8)",
            "difference of λ:",
            ABOVE,
            3,
            thirds("weight", 0, 1),
        ),
        (
            "redundancy rises again in the last third",
            "in words (appendix B.5, figures 7, 8)",
            "difference of λ:",
            ABOVE,
            3,
            thirds("weight", 2, 1),
        ),
    ]
    return _claims("ECOKV", found, command, where)


def _claims(paper: str, found: list[Spec], command: str, where: str = "") -> list[Test]:
    return [
        (Claim(paper, text + where, figure, what, region, command, digits), compute)
        for text, figure, what, region, digits, compute in found
    ]
