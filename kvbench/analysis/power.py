"""How small a paired difference a number of samples can show: the power of the paired t test.

With ``n`` independent samples whose paired differences have standard deviation ``sd``, the test statistic
of a true difference d follows the noncentral t distribution with n − 1 degrees of freedom and
noncentrality d·√n / sd (Cohen 1988, chapter 2).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvbench.analysis.resampling import FEWEST, codes, linearised
from kvbench.errors import UserError

if TYPE_CHECKING:
    import pandas

POWER = 0.8
ALPHA = 0.05


def power_of(difference: float, sd: float, n: float, alpha: float = ALPHA, df: float | None = None) -> float:
    """Chance that a two-sided paired t test at level ``alpha`` finds ``difference``; ``df``: n - 1."""
    from scipy.stats import nct, t

    df = n - 1 if df is None else df
    limit = t.ppf(1 - alpha / 2, df)
    shift = difference * math.sqrt(n) / sd
    with np.errstate(all="ignore"):
        tails = np.array([nct.sf(limit, df, shift), nct.cdf(-limit, df, shift)])
    # Far out scipy gives NaN: the near tail is 1 there, the far one 0.
    return float(np.where(np.isnan(tails), [1.0, 0.0], tails).sum())


def detectable(
    sd: float, n: float, power: float = POWER, alpha: float = ALPHA, df: float | None = None
) -> float:
    """Smallest difference found with chance ``power``, in the unit of ``sd``; 0 for sd 0.

    ``df``: degrees of freedom, n - 1 unless the samples come in clusters, then clusters - 1.
    Raises UserError for fewer than 2 samples, a negative sd, or a power or level outside (0, 1).
    """
    from scipy.optimize import brentq

    if n < 2:
        raise UserError(f"n={n:g} leaves no spread to judge by: give at least 2 samples.")
    if not (math.isfinite(sd) and sd >= 0):
        raise UserError(f"sd={sd:g} is not a standard deviation: give a number of at least 0.")
    if not 0 < alpha < power < 1:
        raise UserError(f"alpha={alpha:g} and power={power:g} must satisfy 0 < alpha < power < 1.")
    if sd == 0:
        return 0.0
    high = 1.0
    while power_of(high, 1, n, alpha, df) < power:
        high *= 2
    return sd * float(brentq(lambda effect: power_of(effect, 1, n, alpha, df) - power, 0, high, xtol=1e-10))


def spread(values: np.ndarray, clusters: Sequence[Hashable] | None = None) -> tuple[float, float, int]:
    """(sd, degrees of freedom, clusters) of paired differences [n]; sd / √n is the error of their mean.

    Where questions share a picture the sd holds the design effect, see ``resampling.linearised``. NaN below
    FEWEST clusters, from which no difference is ever marked.
    """
    values = np.asarray(values, dtype=float)
    m = len(np.unique(codes(len(values), clusters)))
    if m < FEWEST:
        return math.nan, math.nan, m
    found = linearised(values[:, None], clusters)
    return float(math.sqrt(len(values) * (found.errors**2).sum())), float(found.df[0]), m


def of_store(
    store: Path, counts: Sequence[int] = (), power: float = POWER, alpha: float = ALPHA
) -> pandas.DataFrame:
    """What a store's own paired differences allow, one row per scored cell with a base and headline metric.

    Columns: model, benchmark, method, budget, base, metric, n, clusters, sd, and the detectable difference
    with the present samples (``now``) and with each of ``counts`` (``n=COUNT``); NaN where these are fewer
    than FEWEST clusters. A small store knows its sd roughly.
    """
    import pandas

    from kvbench.analysis.bootstrap import labels, paired
    from kvbench.analysis.results import base_of, entries
    from kvbench.analysis.scoring import benchmark_config

    found = entries(store)
    rows = []
    for entry in found:
        base, metric = base_of(entry, found), benchmark_config(entry.cell).get("metric")
        cells = [one for one in (entry, base) if one is not None and one.scores is not None]
        if len(cells) < 2 or any(metric not in one.scores.per_sample for one in cells):
            continue
        try:
            gaps = paired(*(one.scores.per_sample[metric] for one in cells), (entry.label, base.label))
            sd, known, clusters = spread(
                np.array(list(gaps.values())), labels(list(gaps), entry.scores.clusters)
            )
        except UserError:
            continue  # the table's footer names broken scores
        row = {name: getattr(entry.cell, name) for name in ("model", "benchmark", "method", "budget")}
        row |= {"base": base.label, "metric": metric, "n": len(gaps), "clusters": clusters, "sd": sd}
        for name, n in (("now", len(gaps)), *((f"n={n}", n) for n in counts)):
            df = (known + 1) * n / len(gaps) - 1  # more samples bring more clusters of the same sizes
            usable = math.isfinite(sd) and clusters * n / len(gaps) >= FEWEST
            row[name] = detectable(sd, n, power, alpha, df) if usable else math.nan
        rows.append(row)
    columns = ["model", "benchmark", "method", "budget", "base", "metric", "n", "clusters", "sd", "now"]
    return pandas.DataFrame(rows, columns=[*columns, *(f"n={n}" for n in counts)])
