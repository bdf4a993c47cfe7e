"""Analyses of traces: answers known by hand, scipy's figures, and holes that stay holes."""

from __future__ import annotations

import csv
import io
import json
import math

import fakestore
import numpy as np
import pandas
import pytest
from fakestore import benchmark_cfg, method_cfg
from scipy import stats

from kvbench import cli
from kvbench.analysis import correlation, decision, drift, policies
from kvbench.analysis.decision import Splits
from kvbench.analysis.drift_report import render
from kvbench.store import trace

BACON = method_cfg("snapkv+bacon")
PLACE = {"model": "toy", "benchmark": "documents_mini", "selection": "snapkv+bacon budget=64"}


def recorded(cell="c", sample=0, *, steps=3, layers=2, **fields):
    """Rows of a trace as store.load_traces gives them; fields are [steps, layers], rows or one number."""
    values = {
        name: np.broadcast_to(np.array(fields.get(name, 0.0), float), (steps, layers)).copy()
        for name in TRACED
    }
    if "stayed" in fields:
        values["stayed"][0] = math.nan
    flat = {name: value.ravel().astype("float32") for name, value in values.items()}
    step, layer = np.repeat(np.arange(steps), layers), np.tile(np.arange(layers), steps)
    return pandas.DataFrame({"cell": cell, "sample": sample, "step": step, "layer": layer, **flat})


TRACED = [*trace.FIELDS, "held"]


def frame(**by_policy):
    """Samples of one selection: policy -> {column: values by sample}; labels write ``_`` for a blank."""
    parts = []
    for label, columns in by_policy.items():
        name, _, option = label.partition("_")
        n = len(next(iter(columns.values())))
        options = {"tau": float(option.split("=")[-1])} if option else {}
        rows = pandas.DataFrame({"index": range(n), "sample": [f"s{i}" for i in range(n)]})
        rows["cluster"] = columns.get("cluster", [f"p{i}" for i in range(n)])
        for column in ("value", "full_value", "length", *drift.WEIGHTS):
            rows[column] = np.array(columns.get(column, [math.nan] * n), float)
        rows["layer_steps"] = rows["adjacent"] = columns.get("units", [10.0] * n)
        rows["options"] = [options] * n
        parts.append(rows.assign(**PLACE, policy=f"{name} {option}".strip(), name=name, cell=label))
    return pandas.concat(parts, ignore_index=True).astype({"index": "Int64"})


def only(found, **where):
    for column, value in where.items():
        found = found[found[column] == value]
    assert len(found) == 1, found
    return found.iloc[0]


class TestReduction:
    def test_means_over_layer_steps(self):
        traces = recorded(
            refreshed=[[1, 0], [0, 0], [1, 0]],
            stayed=[[9, 9], [1, 0.5], [0.5, 0]],
            drift=[[0.1, 0.3], [0.2, 0.2], [0.4, 0.0]],
            reads=[[160, 0], [0, 0], [160, 0]],
            held=7,
        )
        row = drift.reduce(traces).iloc[0]
        assert (row["cell"], row["index"], row["steps"], row["layer_steps"], row["adjacent"]) == (
            "c",
            0,
            3,
            6,
            4,
        )
        assert row["refreshed"] == pytest.approx(2 / 6)
        assert row["stayed"] == pytest.approx(0.5)  # the first step has none before it
        assert (
            row["drift"] == pytest.approx(0.2) and row["reads"] == pytest.approx(320 / 6) and row["held"] == 7
        )

    def test_tau_is_averaged_over_layers_then_spread_over_samples(self):
        traces = pandas.concat(
            [
                recorded(sample=0, steps=2, tau=[[0.1, 0.3], [0.4, 0.4]]),
                recorded(sample=1, steps=1, tau=[[0.5, 0.7]]),
                recorded("exact", steps=2, tau=math.nan),
            ]
        )
        found = drift.tau_by_step(traces)
        assert found["cell"].tolist() == ["c", "c"] and found["samples"].tolist() == [2, 1]
        assert found["mean"].tolist() == pytest.approx([0.4, 0.4])
        assert found["q25"].tolist() == pytest.approx([0.3, 0.4])  # of 0.2 and 0.6, then of 0.4 alone

    def test_no_rows(self):
        empty = recorded().iloc[:0]
        assert drift.reduce(empty).empty and drift.tau_by_step(empty).empty


class TestPolicies:
    def test_labels_and_selections(self, tmp_path):
        cfg = benchmark_cfg("documents_mini")

        def put(budget, refresh=None, method=BACON):
            method = {**method, "refresh": refresh} if refresh else method
            return fakestore.add(tmp_path, cfg, method, budget, {})

        put(None, method=method_cfg("fullkv"))
        put(32)  # nothing refreshes at this budget: not a selection to analyse
        put(64)
        put(64, {"name": "rcr", "tau": 0.03, "rho": 0.4})
        put(64, {"name": "threshold", "tau": 0.03})
        put(64, {"name": "threshold", "tau": 0.1})
        put(64, {"name": "quest", "page": 16}, method_cfg("snapkv+bacon", window=4))
        from kvbench.store import cells

        known = drift.policies(cells(tmp_path))
        both = known.groupby("selection")["policy"].apply(sorted).to_dict()
        assert both == {
            "snapkv+bacon budget=64 window=16": ["none", "rcr", "threshold tau=0.03", "threshold tau=0.1"],
            "snapkv+bacon budget=64 window=4": ["quest"],
        }
        assert only(known, policy="threshold tau=0.1")["options"] == {"tau": 0.1}

    def test_the_usual_variant_stands_for_a_policy(self):
        found = frame(**{f"threshold_tau={tau}": {"value": [1.0]} for tau in (0.1, 0.03, 0.02)})
        assert policies.chosen(found, "threshold") == "threshold tau=0.03"
        assert policies.chosen(found, "threshold tau=0.1") == "threshold tau=0.1"
        assert policies.chosen(found, "rcr") is None


class TestFidelity:
    def test_means_and_paired_differences(self):
        one, rcr = [0.2, 0.4, 0.9, 0.1, 0.5, 0.3], [0.3, 0.6, 0.8, 0.4, 0.5, 0.4]
        found = policies.fidelity(frame(rcr={"value": rcr}, none={"value": one}))
        assert only(found, policy="none", against="")["value"] == pytest.approx(0.4)
        row = only(found, policy="rcr", against="none")
        assert (row["value"], row["n"], row["clusters"]) == (pytest.approx(0.1), 6, 6)
        gaps = np.subtract(rcr, one)
        assert (row["low"], row["high"]) == pytest.approx(stats.t.interval(0.95, 5, 0.1, stats.sem(gaps)))
        assert only(found, policy="none", against="rcr")["value"] == pytest.approx(-0.1)

    def test_the_uncompressed_answer_is_compared_with_where_it_is_not_1_by_definition(self):
        values = {"value": [0.5, 0.0, 1.0], "full_value": [1.0, 0.0, 1.0]}
        row = only(policies.fidelity(frame(oracle=values)), against="fullkv")
        assert row["value"] == pytest.approx(-0.5 / 3)
        values["full_value"] = [1.0] * 3
        assert "fullkv" not in set(policies.fidelity(frame(oracle=values))["against"])

    def test_questions_about_one_picture_are_drawn_together(self):
        rng = np.random.default_rng(0)
        pages = np.repeat(rng.normal(0, 1, 10), 8)  # eight questions a page, all alike
        alone = policies.fidelity(frame(rcr={"value": pages})).iloc[0]
        clusters = [f"p{i // 8}" for i in range(80)]
        together = policies.fidelity(frame(rcr={"value": pages, "cluster": clusters})).iloc[0]
        assert together["clusters"] == 10
        assert together["high"] - together["low"] > 2 * (alone["high"] - alone["low"])


def test_rates_weigh_by_layer_steps():
    found = policies.rates(frame(rcr={"refreshed": [1.0, 0.0], "reads": [160.0, 0.0], "units": [10.0, 30.0]}))
    assert only(found, quantity="refreshed")["value"] == pytest.approx(0.25)
    assert only(found, quantity="reads")["value"] == pytest.approx(40)
    assert math.isnan(only(found, quantity="overlap")["value"])


class TestTerciles:
    def test_thirds_by_the_sources_drift(self):
        order = [5, 0, 3, 6, 1, 4, 2]  # by rising drift
        one_shot = np.empty(7)
        one_shot[order] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
        value, best = np.arange(7) / 10, np.full(7, 0.9)
        found = policies.terciles(
            frame(
                none={"value": [0.0] * 7, "drift": one_shot},
                # Its own drift runs the other way; the thirds are the one-shot selection's all the same.
                threshold={"value": value, "drift": -one_shot, "refreshed": value, "units": [2.0] * 7},
                exact={"value": best},
            )
        )
        mine = found[found["policy"] == "threshold"].set_index("tercile")
        assert mine["n"].tolist() == [3, 2, 2]
        thirds = [[5, 0, 3], [6, 1], [4, 2]]
        assert mine["value"].tolist() == pytest.approx([value[third].mean() for third in thirds])
        assert mine["refreshed"].tolist() == pytest.approx([value[third].mean() for third in thirds])
        assert mine["gap_exact"].tolist() == pytest.approx([0.9 - value[third].mean() for third in thirds])
        assert mine["drift_low"].tolist() == pytest.approx([0.1, 0.4, 0.6])
        assert mine["drift_high"].tolist() == pytest.approx([0.3, 0.5, 0.7])
        assert mine["gap_infinigen"].isna().all()

    @pytest.mark.parametrize(
        ("drifts", "note"),
        [
            ([math.nan] * 4, "none has no traces: run it with trace=true"),
            ([0.2] * 4, "the drift is the same in every sample"),
            ([0.1, 0.2], "fewer than 3 samples"),
        ],
    )
    def test_holes(self, drifts, note):
        found = policies.terciles(frame(none={"value": [0.5] * len(drifts), "drift": drifts}))
        assert found["note"].tolist() == [note] * 3 and found["value"].isna().all()

    def test_no_such_source(self):
        found = policies.terciles(frame(rcr={"value": [0.5] * 4, "drift": [1, 2, 3, 4]}))
        assert found["note"].iloc[0] == "no cell with refresh=none to take the drift from"


class TestCorrelation:
    def test_scipys_rho_and_the_sign_of_the_gap(self):
        rng = np.random.default_rng(4)
        one_shot = rng.uniform(0, 1, 25).round(1)  # with ties
        length = rng.integers(100, 120, 25).astype(float)
        mine, best = rng.uniform(0, 1, 25), np.full(25, 0.8)
        best[::2] = 0.9
        found = correlation.correlations(
            frame(
                none={"value": mine / 2, "drift": one_shot},
                threshold={"value": mine, "drift": one_shot**2, "length": length},
                infinigen={"value": best},
            )
        )
        found = found[(found["policy"] == "threshold") & (found["gap_to"] == "infinigen")]
        for factor, given in (("drift", one_shot), ("own_drift", one_shot**2), ("length", length)):
            expected = stats.spearmanr(best - mine, given)
            row = only(found, factor=factor)
            assert row["rho"] == pytest.approx(expected.statistic) and row["p"] == pytest.approx(
                expected.pvalue
            )
            assert row["low"] < row["rho"] < row["high"] and row["n"] == 25

    def test_a_gap_that_shrinks_with_drift_is_negative(self):
        rows = frame(
            none={"value": [0.1] * 5, "drift": [1, 2, 3, 4, 5]},
            threshold={"value": [0.1, 0.2, 0.3, 0.4, 0.5]},
            infinigen={"value": [0.6] * 5},
        )
        row = only(correlation.correlations(rows), policy="threshold", gap_to="infinigen", factor="drift")
        assert row["rho"] == pytest.approx(-1)

    def test_resampled_rho_is_that_of_the_repeated_items(self):
        rng = np.random.default_rng(1)
        first, second = rng.integers(0, 6, 30).astype(float), rng.normal(0, 1, 30).round(1)
        counts = rng.multinomial(30, [1 / 30] * 30, size=20)
        expected = [
            stats.spearmanr(np.repeat(first, row), np.repeat(second, row)).statistic for row in counts
        ]
        assert correlation.weighted_spearman(first, second, counts) == pytest.approx(np.array(expected))

    def test_the_interval_agrees_with_scipys_bootstrap(self):
        rng = np.random.default_rng(2)
        first = rng.normal(0, 1, 40)
        second = first + rng.normal(0, 1, 40)
        found = correlation.spearman(first, second)
        expected = stats.bootstrap(
            (first, second),
            lambda x, y: stats.spearmanr(x, y).statistic,
            paired=True,
            vectorized=False,
            n_resamples=999,
            method="percentile",
            rng=rng,
        ).confidence_interval
        assert (found["low"], found["high"]) == (
            pytest.approx(expected.low, abs=0.05),
            pytest.approx(expected.high, abs=0.05),
        )

    @pytest.mark.parametrize(
        ("gap", "factor", "note"),
        [
            ([0.1, 0.2], [1, 2], "fewer than 3 samples"),
            ([0.1, 0.1, 0.1], [1, 2, 3], "the gap is the same in every sample"),
            ([0.1, 0.2, 0.3], [1, 1, 1], "the factor is the same in every sample"),
        ],
    )
    def test_holes(self, gap, factor, note):
        found = correlation.spearman(np.array(gap), np.array(factor, float))
        assert found["note"] == note and math.isnan(found["rho"]) and math.isnan(found["p"])

    def test_missing_cells_and_traces_are_named(self):
        found = correlation.correlations(frame(none={"value": [0.1, 0.2, 0.3]}, exact={"value": [1, 1, 1]}))
        where = {"policy": "none", "factor": "length"}
        assert only(found, gap_to="infinigen", **where)["note"] == "no cell with refresh=infinigen"
        assert (
            only(found, gap_to="exact", **where)["note"] == "no uncompressed answers: run method=fullkv too"
        )
        own = only(found, policy="none", factor="own_drift", gap_to="exact")
        assert own["note"] == "none has no traces: run it with trace=true"


class TestDecision:
    dev, test = frozenset({"s0", "s1"}), frozenset({f"s{i}" for i in range(2, 10)})

    def decide(self, splits=None, **values):
        rows = frame(**{label: {"value": given} for label, given in values.items()})
        found = decision.decisions(rows, given=splits or Splits(self.dev, self.test))
        return only(found, component="policy")

    def test_chosen_on_one_split_and_confirmed_on_the_other(self):
        row = self.decide(none=[0.0] * 10, rcr=[0.9, 0.9, *[0.2, 0.3] * 4], quest=[0.5, 0.5, *[0.9] * 8])
        # quest is better on the test split, which must not matter for the choice.
        assert (row["chosen"], row["reference"], row["verdict"]) == ("rcr", "none", "confirmed")
        assert (row["value"], row["n"]) == (pytest.approx(0.25), 8)
        assert (row["development"], row["test"], row["overlap"]) == (2, 8, 0)

    def test_a_lead_that_the_test_split_does_not_show(self):
        row = self.decide(none=[0.0] * 10, rcr=[0.9, 0.9, *[-0.2, 0.3] * 4])
        assert row["verdict"] == "not confirmed" and row["low"] < 0 < row["high"]
        row = self.decide(none=[0.5] * 10, rcr=[0.9, 0.9, *[0.2, 0.3] * 4])
        assert row["verdict"] == "not confirmed" and row["high"] < 0  # worse is no confirmation either

    def test_the_reference_may_win(self):
        row = self.decide(none=[0.5] * 10, rcr=[0.5, 0.4, *[0.9] * 8])
        assert (row["chosen"], row["verdict"]) == ("none", "reference") and math.isnan(row["value"])
        assert self.decide(none=[0.5] * 10, rcr=[0.5] * 10)["verdict"] == "reference"

    def test_overlap_makes_the_rule_void(self):
        values = {"none": [0.0] * 10, "rcr": [0.9] * 10}
        row = self.decide(Splits(self.dev | {"s5"}, self.test), **values)
        assert (row["verdict"], row["overlap"], row["chosen"]) == ("void", 1, "")
        assert math.isnan(row["value"]) and "share 1 samples" in row["note"]

    def test_a_shared_picture_makes_it_void_too(self):
        pictures = {"cluster": ["a", "b", "b", *"cdefghi"]}
        rows = frame(none={"value": [0.0] * 10, **pictures}, rcr={"value": [0.9] * 10, **pictures})
        row = only(decision.decisions(rows, given=Splits(self.dev, None)), component="policy")
        assert (row["verdict"], row["overlap"], row["shared_pictures"], row["test"]) == ("void", 0, 1, 8)

    def test_variants_and_bounds(self):
        rows = frame(
            **{"none": {"value": [0.9] * 10}, "exact": {"value": [1.0] * 10}},
            **{f"threshold_tau={tau}": {"value": [tau] * 10} for tau in (0.02, 0.03, 0.1)},
        )
        row = only(decision.decisions(rows, given=Splits(self.dev, self.test)), component="threshold")
        assert (row["chosen"], row["reference"]) == ("threshold tau=0.1", "threshold tau=0.03")
        assert row["value"] == pytest.approx(0.07) and row["verdict"] == "confirmed"
        row = only(decision.decisions(rows, given=Splits(self.dev, self.test)), component="policy")
        assert row["candidates"] == "threshold tau=0.03" and row["verdict"] == "reference"  # exact is a bound

    def test_holes_have_a_reason(self):
        row = self.decide(rcr=[0.5] * 10)
        assert row["verdict"] == "" and "refresh=none" in row["note"]
        row = self.decide(none=[math.nan] * 10, rcr=[0.5] * 10)
        assert row["note"] == "none has no scored sample in the development split"
        row = self.decide(Splits(self.dev, frozenset()), none=[0.0] * 10, rcr=[0.5] * 10)
        assert row["verdict"] == "" and row["note"] == "none is not scored"

    def test_splits_are_seeded_and_a_sample_keeps_its_side(self):
        few, many = [f"s{i}" for i in range(50)], [f"s{i}" for i in range(2000)]
        development, test = decision.split(few)
        more, rest = decision.split(many)
        assert development | test == set(few) and not development & test
        assert development == more & set(few) and test == rest & set(few)
        assert 0.2 < len(more) / 2000 < 0.3
        assert decision.split(few, seed=1) != (development, test)
        assert decision.split(reversed(few)) == (development, test)

    def test_splits_keep_pictures_together(self):
        pictures = [f"p{i // 5}" for i in range(100)]
        rows = frame(
            none={"value": [0.0] * 100, "cluster": pictures}, rcr={"value": [1.0] * 100, "cluster": pictures}
        )
        splits = decision.splits_of(rows)
        assert len(splits.development) % 5 == 0 and 0 < len(splits.development) < 100
        assert decision.decisions(rows)["shared_pictures"].tolist() == [0]


REFRESHES = {
    "none": None,
    "rcr": {"name": "rcr", "tau": 0.03, "rho": 0.4},
    "exact": {"name": "exact"},
    "infinigen": {"name": "infinigen"},
}


def fill(store, n=8, traced=True):
    """A store of documents_mini: the policies lose 3, 1, 0 and 1 of 12 words; returns the cells by policy."""
    cfg = benchmark_cfg("documents_mini")
    words = [f"w{i}" for i in range(12)]
    fakestore.add(store, cfg, method_cfg("fullkv"), None, {i: " ".join(words[: 6 + i % 6]) for i in range(n)})
    cells = {}
    for name, refresh in REFRESHES.items():
        lost = {"none": 3, "rcr": 1, "exact": 0, "infinigen": 1}[name]
        method = {**BACON, **({"refresh": refresh} if refresh else {})}
        texts = {i: " ".join(words[: 6 + i % 6 - (lost if i else 0)]) for i in range(n)}
        cell = cells[name] = fakestore.add(store, cfg, method, 64, texts)
        for i in range(n) if traced else ():
            one = np.ones((5, 2), np.float32)
            often = {"none": 0, "rcr": i % 2}.get(name, 1)
            tau = 0.03 * one if name == "rcr" else one * math.nan
            written = trace.Trace(
                one * i / 10, tau, (one * often).astype(np.uint8), one * 160 * often, one, one, one, 2.0
            )
            path = cell.folder / "traces" / cell.digest / f"{i}.parquet"
            trace.write(path, [(cell.digest, i, written)])
    return cells


class TestCommand:
    def run(self, capsys, *arguments):
        code = cli.main(["analyze", "drift", *map(str, arguments)])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    def test_staleness_is_read_off_the_uncompressed_cell_too(self, tmp_path, capsys):
        """Its most attended entry stays in half of the adjacent steps; it takes no part in other analyses."""
        fill(tmp_path)
        whole = fakestore.add(tmp_path, benchmark_cfg("documents_mini"), method_cfg("fullkv"), None, {})
        one = np.ones((5, 2), np.float32)
        stays = np.array([[np.nan, np.nan], [1, 0], [0, 1], [1, 1], [0, 0]], np.float32)
        for i in range(8):
            traced = trace.Trace(
                0 * one, math.nan * one, (0 * one).astype(np.uint8), 0 * one, 0 * one, one, stays, 9
            )
            path = whole.folder / "traces" / whole.digest / f"{i}.parquet"
            trace.write(path, [(whole.digest, i, traced)])
        code, text, _ = self.run(capsys, tmp_path, "--format", "csv")
        rows = [row for row in csv.DictReader(io.StringIO(text)) if row["policy"] == "fullkv"]
        assert code == 0 and {row["table"] for row in rows} == {"rates"}
        (stayed,) = [row for row in rows if row["quantity"] == "stayed"]
        assert float(stayed["value"]) == 0.5 and float(stayed["n"]) == 8
        (line,) = [line for line in self.run(capsys, tmp_path)[1].split("\n") if line.startswith("fullkv ")]
        assert "0.500" in line

    def test_from_a_store_to_tables_and_files(self, tmp_path, capsys):
        cells = fill(tmp_path)
        code, text, _ = self.run(capsys, tmp_path)
        assert code == 0 and "toy · documents_mini · snapkv+bacon budget=64" in text
        files = {path.stem.removeprefix("drift-"): path for path in (tmp_path / "analysis").iterdir()}
        assert sorted(files) == [
            "correlations",
            "decisions",
            "fidelity",
            "rates",
            "samples",
            "tau",
            "terciles",
        ]
        read = {
            name: pandas.read_csv(path, keep_default_na=False, na_values=[""]) for name, path in files.items()
        }
        samples = read["samples"]
        assert len(samples) == 32 and samples["length"].iloc[1] == len(" ".join(f"w{i}" for i in range(7)))
        stored = json.loads((cells["rcr"].folder / "scores" / f"{cells['rcr'].digest}.json").read_text())
        mean = only(read["fidelity"][read["fidelity"]["against"].isna()], policy="rcr")["value"]
        assert mean == pytest.approx(stored["metrics"]["fidelity_rougeL"])
        assert only(read["rates"], policy="rcr", quantity="refreshed")["value"] == pytest.approx(0.5)
        assert only(read["rates"], policy="rcr", quantity="reads")["value"] == pytest.approx(80)
        assert read["tau"]["policy"].unique().tolist() == ["rcr"] and len(read["tau"]) == 5
        assert only(read["terciles"], policy="rcr", tercile=3)["n"] == 2

    def test_formats(self, tmp_path, capsys):
        fill(tmp_path)
        _, markdown, _ = self.run(capsys, tmp_path, "--format", "markdown")
        assert "| policy | n | mean | − none | − rcr |" in markdown
        _, text, _ = self.run(capsys, f"store={tmp_path}", "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(text)))
        assert {row["table"] for row in rows} >= {
            "fidelity",
            "rates",
            "terciles",
            "correlations",
            "decisions",
        }

    def test_given_splits(self, tmp_path, capsys):
        fill(tmp_path)
        (tmp_path / "dev.txt").write_text("s1\ns2\n")
        (tmp_path / "test.txt").write_text("s2\ns3\ns4\n")
        for options, verdict in (([], "confirmed"), ([f"test={tmp_path}/test.txt"], "void")):
            self.run(capsys, tmp_path, f"development={tmp_path}/dev.txt", *options)
            found = pandas.read_csv(tmp_path / "analysis" / "drift-decisions.csv")
            assert found["verdict"].tolist() == [verdict]

    def test_without_traces_only_the_scores_speak(self, tmp_path, capsys):
        fill(tmp_path, n=2, traced=False)
        code, text, _ = self.run(capsys, tmp_path)
        assert code == 0 and "run with trace=true" in text and "fewer than 3 samples" in text
        assert "nan" not in text
        rates = pandas.read_csv(tmp_path / "analysis" / "drift-rates.csv")
        assert rates["value"].isna().all() and not rates["note"].isna().any()

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["development=1.5"], "share like 0.25"),
            (["development=gone.txt"], "neither a file nor a share"),
            (["test=x.txt"], "add development=FILE"),
            (["seed=x"], "seed must be"),
            (["metrics=anls"], "unknown key 'metrics'"),
            (["metric=fidelity_rouge"], "fidelity_rougeL"),
        ],
    )
    def test_mistakes(self, tmp_path, capsys, words, message):
        fill(tmp_path, n=3, traced=False)
        code, _, error = self.run(capsys, tmp_path, *words)
        assert code == 2 and message in error.splitlines()[-1]

    def test_a_store_that_never_refreshes(self, tmp_path, capsys):
        fakestore.add(tmp_path, benchmark_cfg("documents_mini"), BACON, 64, {0: "a"})
        code, _, error = self.run(capsys, tmp_path)
        assert code == 2 and "no cell of" in error and "refresh=rcr" in error
        assert cli.main(["analyze", "drfit", str(tmp_path)]) == 2
        assert "drift" in capsys.readouterr().err


def test_every_hole_at_once_renders():
    rows = frame(rcr={"value": [math.nan]}, threshold={"value": [0.5], "drift": [0.1], "refreshed": [0.2]})
    frames = {
        "samples": rows.drop(columns="options"),
        "fidelity": policies.fidelity(rows),
        "rates": policies.rates(rows),
        "terciles": policies.terciles(rows),
        "correlations": correlation.correlations(rows),
        "tau": pandas.DataFrame(columns=[*drift.KEY, "step"]),
        "decisions": decision.decisions(rows),
    }
    for format in ("text", "markdown", "csv"):
        text = render(frames, "fidelity_rougeL", format)
        assert "no cell with refresh=none" in text and "nan" not in text.lower().replace("infinigen", "")
