"""Clustered resampling, coverage, exact tests and power, against scipy, brute force and tables."""

from __future__ import annotations

import json
import math

import fakestore
import numpy as np
import pytest
from fakestore import benchmark_cfg, method_cfg
from scipy import stats

from kvbench import cli
from kvbench.analysis import power
from kvbench.analysis.bootstrap import Difference, difference, differences
from kvbench.analysis.resampling import draws, interval, intervals, resampled
from kvbench.analysis.results import entries, rows
from kvbench.analysis.significance import holm, mcnemar
from kvbench.benchmarks.base import Scores
from kvbench.errors import UserError
from kvbench.store import write_atomic


def ragged(seed=0, pages=12):
    """Values, page of each and size of each in units: pages of 1 to 6 questions."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, pages)
    page = np.repeat([f"page {i}" for i in range(pages)], sizes)
    values = np.repeat(rng.normal(0, 1, pages), sizes) + rng.normal(0, 0.3, len(page))
    return values, page.tolist(), rng.integers(1, 9, len(page)).astype(float)


class TestClusters:
    def test_a_resample_is_the_mean_over_the_drawn_pages(self):
        values, page, weights = ragged()
        found = resampled(values[:, None], clusters=page, weights=weights, resamples=50)[:, 0]
        names = list(dict.fromkeys(page))
        picks = np.random.default_rng(0).integers(0, 12, (50, 12))
        for mean, drawn in zip(found, picks, strict=True):
            members = [i for pick in drawn for i in range(len(page)) if page[i] == names[pick]]
            assert mean == pytest.approx(np.average(values[members], weights=weights[members]))

    def test_clusters_of_one_are_the_samples(self):
        values = np.random.default_rng(1).normal(0, 1, 30)
        assert interval(values, clusters=[f"z{-i}" for i in range(30)]) == interval(values)

    @pytest.mark.parametrize("method", ["percentile", "BCa"])
    def test_scipys_interval(self, method):
        values = np.random.default_rng(2).exponential(1, 40)
        expected = stats.bootstrap(
            (values,), np.mean, n_resamples=9999, method=method, rng=np.random.default_rng(0)
        ).confidence_interval
        assert interval(values, method=method) == (pytest.approx(expected.low), pytest.approx(expected.high))

    @pytest.mark.parametrize("method", ["percentile", "BCa"])
    def test_scipys_interval_of_a_ratio_over_pages(self, method):
        values, page, _ = ragged(3)
        names = list(dict.fromkeys(page))
        sums = np.array([values[[p == name for p in page]].sum() for name in names])
        sizes = np.array([page.count(name) for name in names], float)
        expected = stats.bootstrap(
            (sums, sizes),
            lambda s, n, axis=-1: s.sum(axis) / n.sum(axis),
            paired=True,
            n_resamples=9999,
            method=method,
            rng=np.random.default_rng(0),
        ).confidence_interval
        found = interval(values, clusters=page, method=method)
        assert found == (pytest.approx(expected.low), pytest.approx(expected.high))

    def test_counts_are_shared_and_whole(self):
        counts = draws(300, 200)
        assert (counts.sum(1) == 300).all() and counts.dtype == np.uint16
        assert draws(300, 200) is counts and not counts.flags.writeable

    def test_many_series_at_once_are_each_alone(self):
        values = np.random.default_rng(5).normal(0, 1, (40, 3))
        together = intervals(values)
        for column in range(3):
            assert tuple(together[:, column]) == pytest.approx(interval(values[:, column]))

    def test_one_page_alone_has_no_interval(self):
        assert all(map(math.isnan, interval(np.arange(5.0), clusters=["p"] * 5)))
        assert all(map(math.isnan, interval(np.arange(5.0), clusters=["p"] * 5, method="BCa")))
        with pytest.raises(UserError, match="percentile, BCa"):
            interval(np.arange(5.0), method="normal")

    def test_pairs_at_once_are_the_pairs_alone_and_errors_keep_their_place(self):
        rng = np.random.default_rng(6)
        a, b, c = (dict(enumerate(rng.normal(0, 1, 20))) for _ in range(3))
        short = {0: 1.0}
        clusters = {i: i // 4 for i in range(20)}
        pairs = [(a, b), (a, short), (c, b), (short, {0: 0.5}), ({}, {})]
        found = differences(pairs, [("x", "y")] * 5, clusters=clusters)
        assert isinstance(found[1], UserError)
        for place in (0, 2, 3):
            alone = difference(*pairs[place], clusters=clusters)
            assert isinstance(found[place], Difference)
            assert repr(found[place].delta) == repr(alone.delta) and found[place].clusters == alone.clusters
            assert found[place].low == pytest.approx(alone.low, nan_ok=True)
        assert found[4].n == 0 and math.isnan(found[4].delta)

    def test_samples_without_a_page_are_named(self):
        with pytest.raises(UserError, match="samples 1 have no page"):
            difference({0: 1.0, 1: 0.0}, {0: 0.0, 1: 0.0}, clusters={0: "p"})


SKEWED = (lambda rng, shape: rng.exponential(1, shape), 1.0)
BINARY = (lambda rng, shape: rng.choice([-1.0, 0.0, 1.0], shape, p=[0.1, 0.6, 0.3]), 0.2)


@pytest.mark.parametrize("n", [100, 500])
@pytest.mark.parametrize(("draw", "mean"), [SKEWED, BINARY], ids=["skewed", "binary scores"])
def test_coverage(draw, mean, n):
    sets = draw(np.random.default_rng(n), (n, 3000))
    low, high = intervals(sets, resamples=1999)
    assert 0.93 <= ((low <= mean) & (mean <= high)).mean() <= 0.97


def test_coverage_where_questions_share_pages():
    rng = np.random.default_rng(8)
    page = np.repeat(np.arange(100), 5)
    sets = rng.normal(0, 1, (100, 2000))[page] + rng.normal(0, 1, (500, 2000))
    for clusters, least, most in ((page.tolist(), 0.93, 0.97), (None, 0.5, 0.85)):
        low, high = intervals(sets, clusters=clusters, resamples=999)
        assert least <= ((low <= 0) & (high >= 0)).mean() <= most  # ignoring the pages is overconfident


class TestExactTests:
    def test_mcnemar_is_the_binomial_test_of_the_discordant_pairs(self):
        first, second = (
            dict(enumerate([1] * 8 + [0] * 2 + [1] * 5)),
            dict(enumerate([0] * 8 + [1] * 2 + [1] * 5)),
        )
        tail = sum(math.comb(10, k) for k in (0, 1, 2)) / 2**10
        assert mcnemar(first, second) == pytest.approx(2 * tail)
        assert mcnemar(second, first) == mcnemar(first, second)
        assert mcnemar(first, first) == 1
        with pytest.raises(UserError, match="0 and 1"):
            mcnemar({0: 0.5}, {0: 1.0})

    def test_holm(self):
        found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": math.nan})
        assert [found[name] for name in "abcd"] == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert math.isnan(found["e"]) and holm({"a": 0.9, "b": 0.8})["a"] == 1


class TestPower:
    def test_tables(self):
        # Cohen's tables: 34 pairs for d = 0.5, 199 for d = 0.2 (power 0.8, two-sided 5 %).
        assert power.power_of(0.5, 1, 34) == pytest.approx(0.808, abs=1e-3)
        assert power.power_of(0.5, 1, 33) < 0.8
        assert power.detectable(1, 199) == pytest.approx(0.2, abs=1e-3)
        assert power.detectable(0.3, 34) == pytest.approx(0.3 * power.detectable(1, 34))

    def test_simulation(self):
        effect = power.detectable(2.0, 25)
        sets = np.random.default_rng(0).normal(effect, 2.0, (4000, 25))
        assert (stats.ttest_1samp(sets, 0, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.025)

    def test_far_tails_end_in_a_number(self):
        for n, alpha, wanted in ((2, 0.05, 0.8), (5, 0.001, 0.99)):
            effect = power.detectable(1, n, wanted, alpha)
            assert power.power_of(effect, 1, n, alpha) == pytest.approx(wanted, abs=1e-6)

    def test_a_power_near_certainty(self):
        """The start of the search must not depend on which of power and level is the further out."""
        effect = power.detectable(1, 20, power=0.99)
        assert effect > power.detectable(1, 20) and power.power_of(effect, 1, 20) == pytest.approx(0.99)

    def test_clusters_are_the_degrees_of_freedom(self, tmp_path):
        pages = [f"p{i // 5}" for i in range(40)]
        put(tmp_path, "snapkv", [0.0] * 40, pages)
        put(tmp_path, "snapkv+bacon", [float(i % 3) for i in range(40)], pages)
        (row,) = power.of_store(tmp_path, [80]).to_dict("records")
        assert row["clusters"] == 8
        assert row["now"] == pytest.approx(power.detectable(row["sd"], 40, df=7))
        assert row["n=80"] == pytest.approx(power.detectable(row["sd"], 80, df=15))
        assert row["now"] > power.detectable(row["sd"], 40)

    def test_spread(self):
        values = np.random.default_rng(0).normal(0, 1, 50)
        assert power.spread(values) == (pytest.approx(values.std(ddof=1)), pytest.approx(49), 50)
        assert np.isnan(power.spread(values[:4])[:2]).all()
        pages = np.repeat(values, 4)  # four copies say no more than one
        sd, df, clusters = power.spread(pages, np.repeat(np.arange(50), 4).tolist())
        assert (clusters, df) == (50, pytest.approx(49))
        assert sd / math.sqrt(200) == pytest.approx(values.std(ddof=1) / math.sqrt(50))

    def test_command(self, tmp_path, capsys):
        put(tmp_path, "snapkv", [0.0] * 20)
        put(tmp_path, "snapkv+bacon", [float(i % 2) for i in range(20)])
        assert cli.main(["power", "sd=0.3", "n=34"]) == 0
        out = capsys.readouterr().out
        assert "sd=0.3" in out and f"34      {power.detectable(0.3, 34):.4g}" in out
        frame = power.of_store(tmp_path, [100])
        assert frame["method"].tolist() == ["snapkv+bacon"]
        sd = np.array([float(i % 2) for i in range(20)]).std(ddof=1)
        assert frame["sd"].tolist() == pytest.approx([sd])
        assert frame["n=100"].tolist() == pytest.approx([power.detectable(sd, 100)])
        for words in (["sd=x"], ["sd=0.3", "n=4"], ["sd=-1"], ["sd=1", "power=2"], [str(tmp_path / "gone")]):
            assert cli.main(["power", *words]) == 2, words
            assert capsys.readouterr().err.count("\n") == 1


def put(store, method, values, clusters=None):
    cell = fakestore.add(store, benchmark_cfg("docqa_mini"), method_cfg(method), 64, {})
    scores = Scores(len(values), {"anls": float(np.mean(values))}, {"anls": dict(enumerate(values))})
    scores.clusters = dict(enumerate(clusters or []))
    document = {"digest": cell.digest, "key": "k", "kept": {"min": 64, "mean": 64.0, "max": 64}}
    write_atomic(cell.folder / "scores" / f"{cell.digest}.json", json.dumps({**document, **scores.to_dict()}))


def test_results_use_the_stored_clusters(tmp_path):
    rng = np.random.default_rng(0)
    pages = [f"p{i // 5}" for i in range(50)]
    gaps = np.repeat(rng.normal(0.1, 0.5, 10), 5)
    put(tmp_path / "a", "snapkv", [0.0] * 50, pages)
    put(tmp_path / "a", "snapkv+bacon", gaps.tolist(), pages)
    row = next(row for row in rows(entries(tmp_path / "a")) if row["method"] == "snapkv+bacon")
    assert (row["n"], row["clusters"]) == (50, 10)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx(interval(gaps, clusters=pages))
    assert row["ci_high"] - row["ci_low"] > 1.5 * np.subtract(*interval(gaps)[::-1])


def test_binary_scores_have_exact_tests_and_others_none(tmp_path):
    put(tmp_path, "snapkv", [0.0] * 10)
    put(tmp_path, "snapkv+bacon", [1.0] * 8 + [0.0] * 2)
    put(tmp_path, "snapkv+ecokv", [1.0] * 6 + [0.0] * 4)
    put(tmp_path, "snapkv+mixkv", [0.5] * 10)
    found = {row["method"]: row for row in rows(entries(tmp_path))}
    assert found["snapkv+bacon"]["p"] == pytest.approx(2 / 2**8)
    assert found["snapkv+bacon"]["p_holm"] == pytest.approx(2 * 2 / 2**8)  # a family of two
    assert found["snapkv+ecokv"]["p_holm"] == pytest.approx(2 / 2**6)
    assert found["snapkv+mixkv"]["p"] is None and found["snapkv"]["p"] is None
