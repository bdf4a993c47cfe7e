"""Resampling: bootstrap intervals of means, with clusters drawn as a whole.

Questions about one page or picture are not independent: a cluster (a page with all its questions) is drawn
as a whole, and the statistic is the ratio of sums over the drawn clusters, so clusters may differ in size
(the cluster bootstrap; Davison and Hinkley 1997, section 3.8). The draws depend on the seed and the number
of clusters alone, so all methods of a benchmark are judged on the same resamples: one matrix of counts,
multiplied with the values of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from kvbench.errors import UserError

RESAMPLES = 9999
SEED = 0
METHODS = ("percentile", "BCa")
_BATCH_VALUES = 20_000_000  # resampled values held at once: bounds memory on large benchmarks


def codes(n: int, clusters: Sequence[Hashable] | None) -> np.ndarray:
    """Cluster numbers [n] from 0 in order of first appearance, so that clusters of one are the samples."""
    if clusters is None:
        return np.arange(n)
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(label, len(number)) for label in clusters], dtype=np.int64)


@lru_cache(maxsize=4)
def draws(clusters: int, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """How often each resample holds each cluster: counts [resamples, clusters], rows summing to clusters."""
    rng = np.random.default_rng(seed)
    counts = np.empty((resamples, clusters), np.uint8 if clusters < 256 else np.uint16)
    for start in range(0, resamples, _rows(clusters)):
        rows = min(_rows(clusters), resamples - start)
        picks = rng.integers(0, clusters, (rows, clusters))
        picks += np.arange(rows)[:, None] * clusters
        counts[start : start + rows] = np.bincount(picks.ravel(), minlength=rows * clusters).reshape(rows, -1)
    counts.flags.writeable = False
    return counts


def _rows(clusters: int) -> int:
    return max(1, _BATCH_VALUES // clusters)


def resampled(
    values: np.ndarray,
    *,
    clusters: Sequence[Hashable] | None = None,
    weights: np.ndarray | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> np.ndarray:
    """Weighted means of resampled clusters, [resamples, k], for k series ``values`` [n, k] at once.

    ``weights`` [n] or [n, k] count a sample's units (layer-steps, say); None: one each. A resample that
    holds no unit gives NaN.
    """
    sums, sizes = _sums(values, clusters, weights)
    counts = draws(len(sums), resamples, seed)
    alike = len(sums) * sizes[0] if (sizes == sizes[0]).all() else None  # every resample is as large then
    result = np.empty((resamples, sums.shape[1]))
    for start in range(0, resamples, _rows(len(sums))):
        chosen = counts[start : start + _rows(len(sums))].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            result[start : start + len(chosen)] = (chosen @ sums) / (
                chosen @ sizes if alike is None else alike
            )
    return result


def _sums(
    values: np.ndarray, clusters: Sequence[Hashable] | None, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted sums [m, k] and sizes [m, k or 1] of the m clusters."""
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones((len(values), 1)) if weights is None else np.asarray(weights, dtype=np.float64)
    weights = weights.reshape(len(values), -1)
    number = codes(len(values), clusters)
    sums = np.zeros((int(number.max()) + 1, values.shape[1]))
    sizes = np.zeros((len(sums), weights.shape[1]))
    np.add.at(sums, number, values * weights)
    np.add.at(sizes, number, weights)
    return sums, sizes


def intervals(
    values: np.ndarray,
    *,
    clusters: Sequence[Hashable] | None = None,
    weights: np.ndarray | None = None,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    method: str = "percentile",
) -> np.ndarray:
    """Bootstrap intervals [2, k] of the (weighted) means of k series ``values`` [n, k]; NaN below 2 clusters.

    ``method`` is percentile or BCa (Efron 1987; scipy's, over clusters). A constant has no skewness to
    correct: its interval is the constant. Raises UserError for another method.
    """
    if method not in METHODS:
        raise UserError(f"there is no bootstrap method {method!r}: choose from {', '.join(METHODS)}.")
    values = np.asarray(values, dtype=np.float64)
    if len(np.unique(codes(len(values), clusters))) < 2:
        return np.full((2, values.shape[1]), math.nan)
    if method == "BCa":
        sums, sizes = _sums(values, clusters, weights)
        sizes = np.broadcast_to(sizes, sums.shape)
        columns = [_bca(*pair, confidence, resamples, seed) for pair in zip(sums.T, sizes.T, strict=True)]
        return np.array(columns).T
    means = resampled(values, clusters=clusters, weights=weights, resamples=resamples, seed=seed)
    tail = 50 * (1 - confidence)
    return np.percentile(means, [tail, 100 - tail], axis=0)


def interval(values: np.ndarray, **options: Any) -> tuple[float, float]:
    """``intervals`` of one series ``values`` [n]."""
    low, high = intervals(np.asarray(values, dtype=np.float64)[:, None], **options)[:, 0]
    return float(low), float(high)


def _bca(
    sums: np.ndarray, sizes: np.ndarray, confidence: float, resamples: int, seed: int
) -> tuple[float, float]:
    from scipy.stats import bootstrap

    mean = sums.sum() / sizes.sum()
    if np.allclose(sums, mean * sizes, rtol=1e-12, atol=1e-15):
        return float(mean), float(mean)
    options: dict[str, Any] = {
        "n_resamples": resamples,
        "confidence_level": confidence,
        "method": "BCa",
        "paired": True,
        "batch": _rows(len(sums)),
        "vectorized": True,
    }

    def ratio(sums: np.ndarray, sizes: np.ndarray, axis: int = -1) -> np.ndarray:
        return sums.sum(axis) / sizes.sum(axis)

    result = bootstrap((sums, sizes), ratio, rng=np.random.default_rng(seed), **options)
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
