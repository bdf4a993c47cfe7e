"""Paired differences: what the interval is, what it refuses, how it covers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from kvbench.analysis import resampling
from kvbench.analysis.bootstrap import difference, paired
from kvbench.analysis.resampling import FEWEST, draws, intervals
from kvbench.errors import UserError


def interval(values, **options):
    return resampling.interval(values, **{"method": "percentile", **options})


def series(values):
    return dict(enumerate(values))


def test_the_interval_is_the_percentiles_of_resampled_means():
    values = np.random.default_rng(3).normal(0.3, 1, 40)
    picks = np.random.default_rng(0).integers(0, 40, (9999, 40))
    low, high = np.percentile(values[picks].mean(-1), [2.5, 97.5])
    assert interval(values) == (pytest.approx(low), pytest.approx(high))


def test_the_usual_interval_is_students_t_of_the_clusters():
    values = np.random.default_rng(3).normal(0.3, 1, 40)
    low, high = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))
    assert resampling.interval(values) == (pytest.approx(low), pytest.approx(high))
    pages = np.repeat(values, 5)  # five copies say no more than one
    assert resampling.interval(pages, clusters=np.repeat(np.arange(40), 5).tolist()) == pytest.approx(
        (low, high)
    )


def test_unequal_clusters_are_cr2_with_satterthwaites_freedom():
    """Against matrices: A (I - H) of least squares on a constant, by Bell and McCaffrey."""
    sizes = [1, 7, 2, 2, 12, 3]
    pages = np.repeat(np.arange(6), sizes)
    values = np.random.default_rng(0).normal(0, 1, len(pages)) + pages
    n = len(pages)
    hat = np.full((n, n), 1 / n)
    rows = []
    for page in range(6):
        inside = np.flatnonzero(pages == page)
        left = np.eye(len(inside)) - hat[np.ix_(inside, inside)]
        share, axes = np.linalg.eigh(left)
        adjust = axes @ np.diag(share**-0.5) @ axes.T
        rows.append(np.ones(len(inside)) @ adjust @ (np.eye(n) - hat)[inside] / n)
    parts = np.array(rows)
    found = resampling.linearised(values[:, None], pages.tolist())
    assert (found.errors**2).sum() == pytest.approx(((parts @ values) ** 2).sum())
    moments = np.linalg.eigvalsh(parts @ parts.T)
    assert found.df == pytest.approx([moments.sum() ** 2 / (moments**2).sum()])


def test_weights_and_constants():
    values = np.random.default_rng(1).normal(0, 1, 30)
    units = np.arange(30.0) % 4
    clusters = [i // 3 for i in range(30)]
    spelt = np.repeat(np.arange(30), units.astype(int))
    one = resampling.interval(values, clusters=clusters, weights=units)
    assert one == pytest.approx(resampling.interval(values[spelt], clusters=[clusters[i] for i in spelt]))
    assert resampling.interval(np.full(30, 0.1)) == pytest.approx((0.1, 0.1))
    both = intervals(np.array([values, np.full(30, 1 / 3)]).T, clusters=clusters)
    assert both[:, 1] == pytest.approx([1 / 3, 1 / 3]) and both[1, 0] > both[0, 0]


@pytest.mark.parametrize("method", resampling.METHODS)
def test_a_constant_in_clusters_of_any_size_is_its_own_interval(method):
    pages = [0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4, 5]
    for value in (0.3, 1.0):  # with rounding and without
        found = resampling.interval(np.full(12, value), clusters=pages, method=method)
        assert found == pytest.approx((value, value))


def test_all_methods_of_a_benchmark_share_the_resamples():
    values = np.random.default_rng(1).normal(0, 1, 30)
    # The same indices for both: shifting every value shifts the interval by exactly as much.
    low, high = interval(values)
    assert interval(values + 5) == (pytest.approx(low + 5), pytest.approx(high + 5))
    assert interval(values) == (low, high)
    assert interval(values, seed=1) != (low, high)


def test_batches_change_nothing(monkeypatch):
    values = np.random.default_rng(1).normal(0, 1, 30)
    whole = interval(values)
    monkeypatch.setattr("kvbench.analysis.resampling._BATCH_VALUES", 3000)
    draws.cache_clear()
    assert interval(values) == whole


def test_pairing_finds_what_unpaired_analysis_misses():
    rng = np.random.default_rng(0)
    hard = rng.uniform(0, 1, 60)  # questions differ far more than the methods
    first, second = hard + 0.02 + rng.normal(0, 0.01, 60), hard
    found = difference(series(first), series(second))
    assert found.significant and found.delta == pytest.approx(0.02, abs=0.005)
    low, high = interval(first)
    assert low < second.mean() < high


def test_order_does_not_matter_and_signs_do():
    first, second = {2: 1.0, 0: 0.5, 1: 0.0}, {0: 0.0, 1: 0.0, 2: 0.0}
    assert list(paired(first, second).items()) == [(0, 0.5), (1, 0.0), (2, 1.0)]
    assert difference(second, first).delta == -difference(first, second).delta


def test_refuses_unmatched_duplicate_and_broken_samples_by_name():
    with pytest.raises(UserError, match="A and B do not hold the same samples .*2, 9"):
        paired({0: 1.0, 2: 1.0}, {0: 1.0, 9: 1.0}, ("A", "B"))
    with pytest.raises(UserError, match="A holds samples 4 twice"):
        paired([(4, 1.0), (4, 0.0)], {4: 1.0}, ("A", "B"))
    with pytest.raises(UserError, match="B has no usable score for samples 1, 2"):
        paired(series([1.0, 1.0, 1.0]), {0: 1.0, 1: math.nan, 2: None}, ("A", "B"))


def test_zero_one_and_constant_samples():
    none = difference({}, {})
    assert none.n == 0 and math.isnan(none.delta) and not none.significant
    for n in range(1, FEWEST):
        few = difference(series([1.0] * n), series([0.0] * n))
        assert (few.n, few.delta) == (n, 1.0) and math.isnan(few.low) and not few.significant
        assert math.isnan(interval(np.arange(float(n)))[0]), "whatever the rule"
    tie = difference(series([1.0] * 5), series([1.0] * 5))
    assert (tie.delta, tie.low, tie.high, tie.significant) == (0, 0, 0, False)
