"""What a policy's gap goes with: Spearman's ρ with drift and with length, over the samples of a store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis import policies
from kvbench.analysis.drift import KEY, ONE_SHOT
from kvbench.analysis.policies import GAP_TO, NO_INTERVAL, TOO_FEW, of, scored, series
from kvbench.analysis.resampling import FEWEST, codes, draws

if TYPE_CHECKING:
    import pandas

RESAMPLES = 1999


def correlations(frame: pandas.DataFrame, source: str = ONE_SHOT) -> pandas.DataFrame:
    """Spearman's ρ between a policy's gap and what may explain it, from the samples of ``drift.load``.

    Columns: KEY, gap_to, factor, rho, low, high, p, n, note. The gap is the value of InfiniGen (of exact
    re-selection) minus the policy's, per sample. Factors: drift (of policy ``source``, as in ``terciles``),
    own_drift (what the policy itself measured) and length (tokens of the uncompressed answer). p is scipy's,
    two-sided, for independent samples; the interval resamples clusters. ``note`` says why a ρ is NaN.
    """
    rows = []
    for group in policies.groups(frame):
        shared_drift, why = policies.drift_of(group, source)
        for policy in policies.labels(group):
            mine = of(group, policy)
            own, length = series(mine, "drift"), series(mine, "length")
            factors = {
                "drift": (shared_drift, why),
                "own_drift": (own, "" if own else f"{policy} has no traces: run it with trace=true"),
                "length": (length, "" if length else "no uncompressed answers: run method=fullkv too"),
            }
            for name in GAP_TO:
                other = policies.chosen(group, name)
                if other == policy:
                    continue
                for factor, (values, note) in factors.items():
                    note = f"no cell with refresh={name}" if other is None else note
                    found = _none(0, note) if note else _of_gap(mine, of(group, other), values)
                    rows.append({**policies.key(group, policy), "gap_to": name, "factor": factor, **found})
    return policies.tidy(rows, [*KEY, "gap_to", "factor", "rho", "low", "high", "p", "n", "note"])


def _none(n: int, note: str) -> dict[str, Any]:
    return {"rho": math.nan, "low": math.nan, "high": math.nan, "p": math.nan, "n": n, "note": note}


def _of_gap(mine: pandas.DataFrame, other: pandas.DataFrame, factor: dict[int, float]) -> dict[str, Any]:
    ours, theirs = series(scored(mine)), series(scored(other))
    shared = sorted(set(ours) & set(theirs) & set(factor))
    clusters = policies.clusters_of(mine)
    gap = np.array([theirs[index] - ours[index] for index in shared])
    return spearman(gap, np.array([factor[i] for i in shared]), [clusters[i] for i in shared])


def spearman(gap: np.ndarray, factor: np.ndarray, clusters: Sequence[str] | None = None) -> dict[str, Any]:
    """rho, low, high, p, n and note of two series [n]."""
    from scipy.stats import spearmanr

    if len(gap) < 3:
        return _none(len(gap), TOO_FEW)
    for what, values in (("gap", gap), ("factor", factor)):
        if np.ptp(values) == 0:
            return _none(len(gap), f"the {what} is the same in every sample")
    found = spearmanr(gap, factor)
    number = codes(len(gap), clusters)
    low = high = math.nan
    if number.max() + 1 >= FEWEST:
        counts = draws(int(number.max()) + 1, RESAMPLES)[:, number]
        resampled = weighted_spearman(gap, factor, counts)
        resampled = resampled[np.isfinite(resampled)]  # a resample of one value has no ρ
        low, high = np.percentile(resampled, [2.5, 97.5])
    return {
        "rho": float(found.statistic),
        "low": float(low),
        "high": float(high),
        "p": float(found.pvalue),
        "n": len(gap),
        "note": "" if number.max() + 1 >= FEWEST else NO_INTERVAL,
    }


def weighted_spearman(first: np.ndarray, second: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """ρ [resamples] of resamples that hold item i ``counts[:, i]`` times; NaN where a series is constant."""
    counts = counts.astype(float)
    sizes = counts.sum(1, keepdims=True)
    centred = []
    for values in (first, second):
        ranks = _mid_ranks(values, counts)
        centred.append(ranks - (counts * ranks).sum(1, keepdims=True) / sizes)
    covariance = (counts * centred[0] * centred[1]).sum(1)
    spread = np.sqrt((counts * centred[0] ** 2).sum(1) * (counts * centred[1] ** 2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 1e-12, covariance / spread, math.nan)


def _mid_ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Mean rank of each item among the repeated items, [resamples, n]."""
    distinct, place = np.unique(values, return_inverse=True)
    held = np.zeros((len(counts), len(distinct)))
    np.add.at(held.T, place, counts.T)
    below = np.cumsum(held, axis=1) - held
    return (below + (held + 1) / 2)[:, place]
