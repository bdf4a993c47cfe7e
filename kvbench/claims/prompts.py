"""Measures of attention and keys, from the values that ``measured`` stores; no model is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from kvbench.analysis.resampling import interval
from kvbench.claims.row import Finding, Hole
from kvbench.observations.stored import Values

Samples = Sequence[Values]


def difference(samples: Samples, first: str, second: str) -> Finding:
    """Mean difference of two quantities of the same samples."""
    return _mean(samples, lambda values: values[first] - values[second])


def average(samples: Samples, name: str) -> Finding:
    """A quantity, the mean over its layers where it has them."""
    return _mean(samples, lambda values: float(np.mean(values[name])))


def layer(samples: Samples, name: str, number: int) -> Finding:
    """A quantity in one layer."""
    return _mean(samples, lambda values: values[name][number])


def lowest_layer(samples: Samples, name: str) -> Finding:
    """A quantity in the layer where its mean is lowest."""
    if not samples:
        raise Hole("not measured yet")
    return layer(samples, name, int(np.argmin(np.mean([values[name] for values in samples], axis=0))))


def thirds(samples: Samples, name: str, first: int, second: int | None = None) -> Finding:
    """A quantity's mean in one third of the layers (0, 1, 2), minus that in another or in both others."""

    def figure(values: Values) -> float:
        parts = [float(part.mean()) for part in np.array_split(np.array(values[name]), 3)]
        others = [parts[k] for k in range(3) if k != first] if second is None else [parts[second]]
        return parts[first] - sum(others) / len(others)

    return _mean(samples, figure)


def selection_time(samples: Samples) -> Finding:
    """What BACON adds to the time of a selection, in % of the prefill."""

    def figure(values: Values) -> float:
        return 100 * (values["select_bacon"] - values["select_base"]) / values["prefill"]

    return _mean(samples, figure)


def _mean(samples: Samples, figure: Callable[[Values], float]) -> Finding:
    """Mean of a figure over samples, pages resampled; samples where it is not defined are left out."""
    if not samples:
        raise Hole("not measured yet")
    known = [(figure(values), values["page"]) for values in samples if _defined(figure, values)]
    if not known:
        raise Hole("no sample has it")
    series, clusters = np.array([value for value, _ in known]), [page for _, page in known]
    low, high = interval(series, clusters=clusters)
    return Finding(float(series.mean()), low, high, len(series), len(set(clusters)))


def _defined(figure: Callable[[Values], float], values: Values) -> bool:
    try:
        return math.isfinite(figure(values))
    except TypeError:  # a quantity that this sample does not have is stored as null
        return False
