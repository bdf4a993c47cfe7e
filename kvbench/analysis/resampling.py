"""Intervals of means over clusters: Student's t of linearised residuals, or a bootstrap on request.

Questions about one page or picture are not independent: a cluster (a page with all its questions) counts as
a whole, and the statistic is a ratio of sums over clusters, so clusters may differ in size. The usual rule,
``t``, is the cluster-robust variance with the leverage correction CR2 and Satterthwaite's degrees of freedom
(Bell and McCaffrey 2002; Imbens and Kolesar 2016); where clusters are alike these are the plain variance of
cluster means and clusters - 1. Under no difference 95 % intervals hold 0 in 94 to 98 % of cases from 5
clusters up (`scripts/coverage.py` prints the simulation), percentiles of resampled means in 81 to 92 % at 5
to 10. What no rule here holds: differences that are lopsided themselves, rare large losses say, are covered
in 88 to 93 %, and a true difference of 5 % from a cell that is always right in 81 % at 8 clusters and 85 to
92 % at 20 and 40, as too few samples differ to see the spread; tables say so near the maximum.

Bootstraps (Davison and Hinkley 1997, section 3.8) draw clusters as a whole. The draws depend on the seed and
the number of clusters alone, so all methods of a benchmark are judged on the same resamples: one matrix of
counts, multiplied with the values of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from kvbench.errors import UserError

RESAMPLES = 9999
SEED = 0
METHODS = ("t", "percentile", "BCa")
DEFAULT = "t"
FEWEST = 5  # clusters: from fewer there is no interval and no mark, whatever the method
ROUGH = 20  # clusters: intervals from fewer are called rough
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
    counts = np.empty((resamples, clusters), np.uint16)
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


@dataclass(frozen=True)
class Linear:
    """Means [k] of k series, what each of m clusters adds to their errors [m, k], degrees of freedom [k].

    The squares of ``errors`` sum to the variance of the mean.
    """

    means: np.ndarray
    errors: np.ndarray
    df: np.ndarray

    def interval(self, confidence: float = 0.95) -> np.ndarray:
        """Student's t intervals [2, k]."""
        from scipy.special import stdtrit

        half = stdtrit(self.df, (1 + confidence) / 2) * np.sqrt((self.errors**2).sum(0))
        return np.array([self.means - half, self.means + half])


def linearised(
    values: np.ndarray,
    clusters: Sequence[Hashable] | None = None,
    weights: np.ndarray | None = None,
) -> Linear:
    """Weighted means of k series ``values`` [n, k] as sums over clusters.

    With h the share of the units that a cluster holds, its error is its residual sum over √(1 - h) (CR2). The
    degrees of freedom match the first two moments of the variance for independent samples of one spread:
    1 / (Σh² + (Σu)² - Σu²) with u = h² / (1 - h). One cluster that holds all has no error: NaN.
    """
    sums, sizes = _sums(values, clusters, weights)
    total = sizes.sum(0)
    means = sums.sum(0) / total
    share = sizes / total
    with np.errstate(invalid="ignore", divide="ignore"):
        residuals = sums - sizes * means
        residuals[np.abs(residuals) <= 1e-12 * np.abs(sums).max(initial=1e-300)] = 0  # rounding of constants
        errors = residuals / total / np.sqrt(1 - share)
        leverage = share**2 / (1 - share)
        df = 1 / ((share**2).sum(0) + leverage.sum(0) ** 2 - (leverage**2).sum(0))
    return Linear(means, errors, np.broadcast_to(df, means.shape))


def intervals(
    values: np.ndarray,
    *,
    clusters: Sequence[Hashable] | None = None,
    weights: np.ndarray | None = None,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    method: str = DEFAULT,
) -> np.ndarray:
    """Intervals [2, k] of the (weighted) means of k series ``values`` [n, k]; NaN below FEWEST clusters.

    ``method`` is t, percentile or BCa (Efron 1987; scipy's, over clusters); ``resamples`` and ``seed`` are
    those of the bootstraps. A constant's interval is the constant. Raises UserError for another method.
    """
    if method not in METHODS:
        raise UserError(f"there is no interval {method!r}: choose from {', '.join(METHODS)}.")
    values = np.asarray(values, dtype=np.float64)
    if len(np.unique(codes(len(values), clusters))) < FEWEST:
        return np.full((2, values.shape[1]), math.nan)
    if method == "t":
        return linearised(values, clusters, weights).interval(confidence)
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
