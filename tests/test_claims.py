"""The papers' claims: verdicts known by hand, brute force, holes, and measuring that continues."""

from __future__ import annotations

import inspect
import json
import math
import re
import shlex
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import fakestore
import numpy as np
import pytest
import torch
import yaml
from fakestore import benchmark_cfg, method_cfg
from scipy.stats import rankdata
from test_drift import frame

from kvbench import claims, cli, reference
from kvbench.analysis import correlation
from kvbench.analysis.drift import Drift
from kvbench.claims import cells, measured, measures, prompts, quantities, reselection, verdicts
from kvbench.claims.row import FAILS, HOLDS, UNDECIDED, Claim, ClaimRow, Finding, Hole, Region, verdict
from kvbench.engine.prefill import Prefill
from kvbench.errors import UserError
from kvbench.rendering import FORMATS

NAN = math.nan


def estimate(value, low, high, **more):
    return Finding(value, low, high, **{"n": 9, "clusters": 6, **more})


@pytest.mark.parametrize(
    ("low", "high", "region", "expected"),
    [
        (1, 3, Region(low=0), HOLDS),
        (-3, -1, Region(low=0), FAILS),
        (-1, 3, Region(low=0), UNDECIDED),
        (0, 3, Region(low=0), UNDECIDED),  # touching separates nothing
        (0, 0, Region(low=0), UNDECIDED),  # a tie
        (-3, 0, Region(low=0), UNDECIDED),
        (-3, -1, Region(high=0), HOLDS),
        (1, 3, Region(high=0), FAILS),
        (0.41, 0.44, Region(0.35, 0.45), HOLDS),
        (0.30, 0.44, Region(0.35, 0.45), UNDECIDED),
        (0.30, 0.60, Region(0.35, 0.45), UNDECIDED),  # wider than the region
        (0.46, 0.60, Region(0.35, 0.45), FAILS),
        (0.10, 0.34, Region(0.35, 0.45), FAILS),
        (NAN, NAN, Region(low=0), UNDECIDED),  # one page has no interval
    ],
)
def test_an_interval_decides_only_when_all_of_it_lies_on_one_side(low, high, region, expected):
    assert verdict(estimate((low + high) / 2, low, high), region) == expected


def test_too_few_pages_decide_nothing():
    assert verdict(estimate(2, 1, 3, clusters=5), Region(low=0)) == HOLDS
    assert verdict(estimate(2, 1, 3, clusters=4), Region(low=0)) == UNDECIDED


def test_a_count_decides_without_an_interval():
    none, some = (Finding(k, k, k, 9, 9, counted=True) for k in (0, 4))
    assert verdict(none, Region(high=1)) == HOLDS and verdict(some, Region(high=1)) == FAILS
    assert verdict(some, Region(low=0)) == HOLDS


@pytest.mark.parametrize(
    ("region", "text"), [(Region(low=0), "> 0"), (Region(high=0.5), "< 0.5"), (Region(-1, 2), "-1 to 2")]
)
def test_regions_say_themselves(region, text):
    assert str(region) == text


CLAIM = Claim(
    "x", "BACON", "more | less", "[1]", "points", 1, Region(low=0), "run experiment=claims", "changed"
)
BACON, ALONE = {"snapkv+bacon": {}}, {"snapkv": {}}
LISTED = claims.listed()


def by_command(name):
    """The claims whose command is ``kvbench name``."""
    return [claim for claim in LISTED if claim.command.split()[0] == name]


class TestRendering:
    def test_a_figure_with_its_interval(self):
        row = ClaimRow(CLAIM, estimate(1.24, 0.5, 2.0, note="best: a"))
        shown = verdicts.cells(row, {CLAIM.command: "a"})
        assert shown[2:] == ["1.2 [0.5, 2.0]; best: a", "9 (6)", "points: > 0", "holds", "(a)"]

    def test_one_page_has_no_interval_and_a_count_needs_none(self):
        letters = {CLAIM.command: "a"}
        assert verdicts.cells(ClaimRow(CLAIM, estimate(1.2, NAN, NAN)), letters)[2] == "1.2 [no interval]"
        assert verdicts.cells(ClaimRow(CLAIM, estimate(3, 3, 3, counted=True)), letters)[2] == "3.0"

    @pytest.mark.parametrize("format", FORMATS)
    def test_a_hole_names_its_reason_and_the_command(self, format):
        text = claims.render([ClaimRow(CLAIM, None, "no scored snapkv")], "runs/x", format, 160)
        assert "no scored snapkv" in text and "kvbench run experiment=claims store=runs/x" in text
        assert ("---" if format == "latex" else "—") in text and "1]" in text
        assert format == "csv" or "holds:" in text

    def test_a_store_with_blanks_is_quoted_in_the_command(self):
        text = claims.render([ClaimRow(CLAIM, None, "x")], "my runs/a=b", "text", 160)
        (line,) = [line for line in text.splitlines() if "kvbench run" in line]
        assert shlex.split(line)[-1] == "store='my runs/a=b'"

    def test_markdown_keeps_its_columns(self):
        text = claims.render([ClaimRow(CLAIM, None, "x")], "s", "markdown")
        table = [line for line in text.splitlines() if line.startswith("|")]
        assert {line.replace("\\|", "").count("|") for line in table} == {len(verdicts.COLUMNS) + 1}


def test_every_claim_is_a_row_of_an_empty_store(tmp_path, capsys):
    assert cli.main(["claims", f"store={tmp_path}", "measure=false", "--format", "markdown"]) == 1
    out = capsys.readouterr().out
    assert sum(line.startswith("| ") and "| —" in line for line in out.splitlines()) == len(LISTED)
    assert out.count("not measured yet") == len([*by_command("claims"), *by_command("observe")])


def test_every_record_is_whole_and_names_what_exists():
    from kvbench.paths import conf_dir

    records = yaml.safe_load(Path(claims.__file__).with_name("claims.yaml").read_text("utf-8"))
    for record in records:
        assert list(record) == [field.name for field in fields(Claim)], record["id"]
        assert all(value not in (None, "", {}) for value in record.values()), record["id"]
    for claim in LISTED:
        command, _, name = claim.command.partition(" experiment=")
        assert command == "claims" if not name else command in ("run", "observe"), claim.id
        assert not name or (conf_dir() / "experiment" / f"{name}.yaml").is_file(), claim.id
        assert claim.region.low < claim.region.high, claim.id
        bound(claim)  # raises where the measure does not take these arguments
    for unique in ("id", "text"):
        assert len({getattr(claim, unique) for claim in LISTED}) == len(LISTED)
    papers = [claim.paper for claim in LISTED]
    assert papers == sorted(papers, key=["BACON", "ECOKV", "RCR"].index)  # a table a paper, in this order


def bound(claim):
    """The arguments that a claim's measure is called with, by name."""
    ((name, given),) = ({claim.measure: []} if isinstance(claim.measure, str) else claim.measure).items()
    signature = inspect.signature(measures.MEASURES[name])
    found = signature.bind(None, *given) if isinstance(given, list) else signature.bind(None, **given)
    found.apply_defaults()
    return found.arguments


@pytest.mark.parametrize("command", sorted({c.command for c in LISTED if "gap" in c.measure}))
def test_the_cells_that_a_claim_compares_are_planned(command):
    """By its experiment; what is at equal memory anyway is in experiment=claims."""
    from kvbench.planning import plan

    def planned(command, benchmark):
        jobs = plan.jobs([command.removeprefix("run "), f"benchmark={benchmark}"])
        return [(cell.method, cell.budget, cell.options) for job in jobs for cell in job.cells]

    compared = [bound(claim) for claim in LISTED if claim.command == command and "gap" in claim.measure]
    benchmark = compared[0]["benchmarks"][0]
    known = planned(command, benchmark)
    if command.endswith("claims_equal"):
        known += planned("run experiment=claims", benchmark)
    for given in compared:
        for method, options in [*given["first"].items(), *given["second"].items()]:
            budget = None if method == "fullkv" else given["budget"]
            wanted = options if budget is None else {"window": cells.WINDOW, **options}
            assert any(
                cell[:2] == (method, budget) and wanted.items() <= cell[2].items() for cell in known
            ), (method, options)


@pytest.mark.parametrize("word", ["limit=0", "limit=x", "measure=perhaps", "claim=3"])
def test_wrong_settings_are_refused(tmp_path, capsys, word):
    assert cli.main(["claims", f"store={tmp_path}", word]) == 2
    assert word.split("=")[0] in capsys.readouterr().err


TABLE = re.compile(r"(\w+) ([\d.]+) → ([\d.]+) \(table (\d+), budget (\d+)\)")
TITLES = {"DocVQA": "docvqa", "ChartQA": "chartqa", "OCRBench": "ocrbench", "LongBench": "longbench"}


def test_printed_figures_are_the_published_ones():
    printed = [(claim, match.groups()) for claim in LISTED if (match := TABLE.fullmatch(claim.figure))]
    assert len(printed) == 15
    for claim, (title, *pair, table, budget) in printed:
        known = defaultdict(set)  # by model: values of this benchmark and budget
        for row in reference.rows(claim.paper.lower(), table):
            if (row.benchmark, str(row.budget)) == (TITLES[title], budget):
                known[row.model].add(row.value)
        assert any(values.issuperset(pair) for values in known.values()), claim.id
    times = [
        r for r in reference.rows("bacon", "5") if r.metric == "latency" and r.method.startswith("snapkv")
    ]
    found = {row.method: row.value for row in times}
    assert any(f"{found['snapkv']} → {found['snapkv+bacon']}" in c.figure for c in by_command("claims"))
    row = next(r for r in reference.rows("rcr") if r.metric == "same_top_position" and r.value == "41")
    assert row.model == "qwen2_vl_7b" and any("59 % (Qwen2-VL)" in c.figure for c in by_command("run"))


class TestCells:
    """Exact match of three benchmarks; the answers' scores are put in place."""

    def add(self, store, method, right, benchmark, **options):
        config = method_cfg(method, **options)
        if "+" not in method:
            config["score"] = {"name": "window"}
        texts = {i: "x" for i in range(len(right))}
        asked = benchmark_cfg(benchmark, "sets")
        cell = fakestore.add(store, asked, config, 32, texts, model="embedded")
        metric = benchmark_cfg(benchmark)["metric"]
        document = {
            "digest": cell.digest,
            "key": "made up",
            "kept": {"mean": 32, "min": 32, "max": 32},
            "n": len(right),
            "metrics": {metric: sum(right) / len(right)},
            "per_sample": {metric: {str(i): v for i, v in enumerate(right)}},
            "warnings": [],
            "clusters": {str(i): f"page{i // 2}" for i in range(len(right))},
        }
        path = cell.folder / "scores" / f"{cell.digest}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document))

    def both(self, store, first, second):
        for benchmark in cells.QUESTIONS:
            self.add(store, "snapkv+bacon", first, benchmark)
            self.add(store, "snapkv", second, benchmark)

    def test_pools_benchmarks_in_points_and_counts_pages_apart(self, tmp_path):
        self.both(tmp_path, [1, 1, 1, 0], [0, 0, 1, 0])
        found = cells.gap(cells.Cells(tmp_path), BACON, ALONE)
        assert (found.value, found.n, found.clusters) == (pytest.approx(50), 12, 6)
        assert found.low < 50 < found.high

    def test_another_direction_changes_the_sign(self, tmp_path):
        self.both(tmp_path, [1, 1, 1, 0], [0, 0, 1, 0])
        assert cells.gap(cells.Cells(tmp_path), ALONE, BACON).value == pytest.approx(-50)

    def test_the_usual_cell_is_found_among_variants(self, tmp_path):
        self.both(tmp_path, [1, 1], [0, 0])
        for benchmark in cells.QUESTIONS:
            self.add(tmp_path, "snapkv+bacon", [0, 1], benchmark, evidence=False)
        found = cells.Cells(tmp_path)
        assert cells.gap(found, BACON, ALONE).value == 100
        assert cells.gap(found, BACON, {"snapkv+bacon": {"score.evidence": False}}).value == 50

    def test_unequal_samples_and_missing_cells_are_holes(self, tmp_path):
        self.both(tmp_path, [1, 1, 1], [0, 0])
        claim = replace(CLAIM, measure={"gap": {"first": BACON, "second": ALONE}})
        row = measures.row(claim, cells.Cells(tmp_path))
        assert row.estimate is None and "do not hold the same samples" in row.note
        with pytest.raises(Hole, match=r"no scored adakv\+bacon at budget 32 on docqa_mini"):
            cells.gap(cells.Cells(tmp_path), {"adakv+bacon": {}}, {"adakv": {}})


class TestReselection:
    """Figures from made-up samples of policies, known by hand."""

    @pytest.fixture
    def store(self, tmp_path):
        found = cells.Cells(tmp_path)
        pages = ["a", "a", "b", "b"]
        rows = frame(
            none={"value": [0.1, 0.2, 0.1, 0.2], "cluster": pages, "drift": [0.1, 0.2, 0.3, 0.4]},
            oracle={"value": [0.5, 0.0, 0.8, 1.0], "cluster": pages},
            exact={"value": [1.0, 0.5, 0.8, 1.0], "cluster": pages, "stayed": [0.1] * 4},
            infinigen={"value": [0.9, 0.8, 0.7, 0.6], "cluster": pages},
            rcr={"value": [0.5] * 4, "cluster": pages, "reads": [60, 64, 68, 64], "refreshed": [0.4] * 4},
            **{
                "threshold_tau=0.05": {
                    "value": [0.5, 0.6, 0.6, 0.6],
                    "cluster": pages,
                    "refreshed": [0.3, 0.5, 0.4, 0.3],
                },
                "threshold_tau=0.15": {
                    "value": [0.8] * 4,
                    "cluster": pages,
                    "length": [1, 2, 3, 4],
                    "refreshed": [0.4, 0.1, 0.1, 0.1],
                },
                "threshold_detector=exact tau=0.05": {"value": [0.9] * 4, "cluster": pages},
            },
        )
        for row in rows.itertuples():
            if row.name == "threshold":
                row.options["detector"] = "exact" if "exact" in row.policy else "lowrank"
        full = frame(fullkv={"cluster": pages, "stayed": [0.5, 0.7, 0.9, 0.7]})
        here = {"model": "embedded", "benchmark": "describe_mini"}
        found.drift = Drift(rows.assign(**here), None, full.assign(**here, selection="fullkv"))
        return found

    def test_recovered_is_a_ratio_of_sums(self, store):
        found = reselection.recovered(store)
        assert (found.value, found.n) == (pytest.approx((0.5 + 0.5 + 0) / (0.5 + 1 + 0.2)), 3)
        assert math.isnan(found.low)  # of two pages

    def test_change_is_what_did_not_stay(self, store, monkeypatch):
        found = reselection.changed(store)
        assert found.value == pytest.approx(0.3) and math.isnan(found.low)
        monkeypatch.setattr("kvbench.analysis.resampling.FEWEST", 2)
        found = reselection.changed(store)
        assert found.low < 0.3 < found.high and (found.low + found.high) / 2 == pytest.approx(0.3)

    def test_the_best_threshold_is_the_rival(self, store):
        found = reselection.against_best_threshold(store, "lowrank")
        assert (found.value, found.note) == (pytest.approx(-0.3), "best: threshold tau=0.15")
        found = reselection.against_best_threshold(store, "exact")
        assert (found.value, found.note) == (pytest.approx(-0.4), "best: threshold detector=exact tau=0.05")

    def test_a_threshold_of_another_detector_is_no_rival(self, store):
        samples = store.drift.samples
        store.drift = replace(store.drift, samples=samples[~samples["policy"].str.contains("exact")])
        with pytest.raises(Hole, match="no scored cell with refresh=threshold refresh.detector=exact"):
            reselection.against_best_threshold(store, "exact")

    def test_the_rival_at_equal_share_refreshes_as_often(self, store):
        found = reselection.against_threshold_at_equal_share(store)
        assert found.value == pytest.approx(-0.075)
        assert found.note == "threshold tau=0.05 refreshes 0.38, rcr 0.40"
        store.drift = replace(store.drift, samples=store.drift.samples.assign(refreshed=math.nan))
        with pytest.raises(Hole, match="trace=true"):
            reselection.against_threshold_at_equal_share(store)

    def test_means_and_differences(self, store):
        assert reselection.fidelity(store, "oracle").value == pytest.approx(0.575)
        assert reselection.against(store, "rcr", "none").value == pytest.approx(0.35)
        assert reselection.rate(store, "rcr", "reads").value == pytest.approx(64)

    def test_the_gap_goes_with_drift(self, store):
        found = reselection.gap_correlation(store, "drift")
        assert found.value == pytest.approx(-1)
        assert found.note == "threshold tau=0.05: fewer than 5 pictures have no interval"

    def test_pairs_whose_interval_excludes_zero_are_counted(self, store, monkeypatch):
        monkeypatch.setattr(reselection, "DYNAMIC", ("exact", "rcr", "infinigen"))
        values = {"exact": [1] * 6, "rcr": [0] * 6, "infinigen": [1, 0, 1, 1, 1, 1]}
        pages = dict(enumerate("abcdef"))

        def entry(name, scores):
            known = SimpleNamespace(per_sample={"x": dict(enumerate(scores))}, clusters=pages)
            return SimpleNamespace(cell=SimpleNamespace(digest=name), scores=known)

        store.entries = [entry(*item) for item in values.items()]
        found = reselection.separated(store, "x")
        assert (found.value, found.counted, found.note) == (2, True, "of 3 pairs")
        with pytest.raises(Hole, match="y of describe_mini is not scored"):
            reselection.separated(store, "y")

    def test_rouge_against_the_page_takes_the_nearest_description(self, tmp_path, monkeypatch):
        asked = benchmark_cfg("describe_mini", "sets")
        texts = {0: "a red cat", 1: "nothing"}
        cell = fakestore.add(tmp_path, asked, method_cfg("snapkv"), 64, texts, model="embedded")
        own = {0: ["a dog", "a red house"], 1: ["a hat"]}
        page = SimpleNamespace(references=lambda indices: {index: own[index] for index in indices})
        monkeypatch.setattr(reselection.benchmarks, "load", lambda config: page)
        found = reselection.reference_rouge(SimpleNamespace(cell=cell))
        assert found == {0: pytest.approx(2 / 3), 1: 0}

    def test_equal_lengths_have_no_correlation_and_decide_nothing(self, store, monkeypatch):
        known = correlation.correlations(store.drift.samples)
        same = correlation.spearman(np.arange(4.0), np.ones(4), list("abcd"))
        monkeypatch.setattr(correlation, "correlations", lambda group: known.assign(**same))
        found = reselection.gap_correlation(store, "length")
        assert math.isnan(found.value) and "the same in every sample" in found.note
        row = ClaimRow(CLAIM, found)
        assert row.verdict == UNDECIDED
        shown = verdicts.cells(row, {CLAIM.command: "a"})[2]
        assert shown.startswith("not defined; ") and "nan" not in shown

    MISSING = ({"fidelity": ["quest"]}, {"rate": ["exact", "reads"]}, {"gap_correlation": ["length"]})

    @pytest.mark.parametrize("measure", MISSING)
    def test_what_is_missing_is_a_hole(self, store, measure):
        with pytest.raises(Hole):
            measures.figure(replace(CLAIM, measure=measure), store)


@pytest.fixture(scope="module")
def prompt():
    """4 layers, 2 KV heads of 3 query heads, 3 tokens, 40 tiles, 20 tokens of text."""
    torch.manual_seed(3)
    layers, heads, length, dim, text = 4, 2, 63, 8, 20
    visual = torch.zeros(length, dtype=torch.bool)
    visual[3:43] = True
    made = torch.randn
    return Prefill(
        key_stack=made(layers, heads, length, dim),
        value_stack=made(layers, heads, length, dim),
        window_queries=made(layers, heads * 3, text, dim),
        logits=made(5),
        length=length,
        next_position=length,
        visual_mask=visual,
    )


def probabilities(prompt):
    """[layer][query head][query][position]: causal attention of the text's queries, one by one."""
    layers, query_heads, text, dim = prompt.window_queries.shape
    rows = torch.zeros(layers, query_heads, text, prompt.length)
    for layer in range(layers):
        for head in range(query_heads):
            keys = prompt.key_stack[layer, head // 3]
            for query in range(text):
                seen = prompt.length - text + query + 1
                logits = keys[:seen] @ prompt.window_queries[layer, head, query] / dim**0.5
                rows[layer, head, query, :seen] = logits.softmax(0)
    return rows


def test_attention_equals_brute_force(prompt):
    label, value = [4, 5], [7, 30]
    found = quantities.quantities(prompt, label, value)
    rows = probabilities(prompt)
    layers, query_heads, text, _ = rows.shape
    answer, evidence = [3 + t for t in value], [3 + t for t in (4, 5, 7, 30)]
    for name, where in (("answer", answer), ("evidence", evidence)):
        mass = rows[..., where].sum(-1)
        assert found[f"{name}_last"] == pytest.approx(100 * float(mass[:, :, -1].mean()), rel=1e-4)
        assert found[f"{name}_earlier"] == pytest.approx(100 * float(mass[:, :, :-1].mean()), rel=1e-4)
    hits = {"last": 0, "window": 0, "noise": 0}
    coherence, persistence = ({True: [], False: []} for _ in range(2))
    strong = []
    for layer in range(layers):
        for head in range(2):
            group = rows[layer, 3 * head : 3 * head + 3]
            last, window = group[:, -1].mean(0), group[:, -16:].mean((0, 1))
            for name, scores in (("last", last), ("window", window)):
                best = scores[: prompt.length - 16].argsort(descending=True)[:16].tolist()
                hits[name] += len(set(best) & set(evidence))
            best = (3 + last[3:43].argsort(descending=True)[:4]).tolist()
            hits["noise"] += 4 - len(set(best) & set(evidence))
        mean = rows[layer, :, -1, 3:43].mean(0)
        strong.append(set(mean.argsort(descending=True)[:16].tolist()))
        for tile in strong[-1]:
            near = [u in strong[-1] for u in range(tile - 5, tile + 6) if u != tile and 0 <= u < 40]
            coherence[3 + tile in evidence].append(sum(near) / len(near))
    for layer in range(layers - 1):
        for tile in strong[layer]:
            persistence[3 + tile in evidence].append(tile in strong[layer + 1])
    heads = layers * 2
    assert found["recall_last"] == pytest.approx(hits["last"] / heads / 4)
    assert found["recall_window"] == pytest.approx(hits["window"] / heads / 4)
    assert found["noise"] == pytest.approx(hits["noise"] / heads / 4)
    for name, kind in (("evidence", True), ("noise", False)):
        assert found[f"coherence_{name}"] == pytest.approx(
            sum(coherence[kind]) / len(coherence[kind]), rel=1e-4
        )
        assert found[f"persistence_{name}"] == pytest.approx(sum(persistence[kind]) / len(persistence[kind]))


def test_keys_equal_brute_force(prompt):
    found = quantities.keys(quantities.observe(prompt))
    method = quantities.build({"name": "snapkv+ecokv"}, 32)
    view = quantities.observe(prompt).view(method.window, *method.base)
    diversity = method.score.diversity(view)
    for layer in range(4):
        cosines, correlations = [], []
        for head in range(2):
            unit = torch.nn.functional.normalize(prompt.key_stack[layer, head], dim=-1)
            pairs = unit @ unit.T
            cosines.append(float((pairs.sum() - pairs.trace()) / (63 * 62)))
            a, b = (rankdata(x[layer, head].numpy()) for x in (view.importance, diversity))
            a, b = a - a.mean(), b - b.mean()
            correlations.append((a @ b) / ((a @ a) * (b @ b)) ** 0.5)
        assert found["cosine"][layer] == pytest.approx(sum(cosines) / 2, abs=1e-5)
        assert found["correlation"][layer] == pytest.approx(sum(correlations) / 2, abs=1e-6)


def test_diversity_and_weight_are_what_the_score_mixes(prompt):
    """The parts that the claims look at are those that ECOKV ranks by."""
    from kvbench.methods.observation import min_max, scaled_to

    method = quantities.build({"name": "snapkv+ecokv"}, 32)
    view = quantities.observe(prompt).view(method.window, *method.base)
    weight = method.score.weight(view).unsqueeze(-1)
    mixed = weight * scaled_to(min_max(method.score.diversity(view)), view.importance)
    mixed = mixed + (1 - weight) * view.importance
    torch.testing.assert_close(method.score(view, None), mixed)


def test_selection_is_timed_by_method_and_the_fastest_counts(prompt, monkeypatch):
    clock = iter([0.0, 0.004, 1.0, 1.007, 2.0, 2.003, 3.0, 3.009])  # base, bacon, base, bacon
    monkeypatch.setattr(quantities.time, "perf_counter", lambda: next(clock))
    asked = []
    monkeypatch.setattr(quantities, "kept_mask", lambda method, _: asked.append(method.name))
    found = quantities.selection_time(prompt, repeats=2)
    assert found == {"select_base": pytest.approx(3), "select_bacon": pytest.approx(7)}
    assert asked == ["snapkv", "snapkv+bacon"] * 2


def test_every_measured_claim_has_a_figure_that_the_report_shows_too(prompt, tmp_path):
    from kvbench.report.page import _claims

    assert _claims(tmp_path) is None
    values = {"prefill": 100.0, **quantities.quantities(prompt, [4, 5], [7, 30])}
    both = iter([(0, {"page": "p", **values}), (1, {"page": "q", **values})])
    of = measured.settings(CONFIG, MODEL)
    measured.fill(measured.path(tmp_path, "docqa_mini"), of, both)
    measured.fill(measured.path(tmp_path, "textqa_mini"), of | {"version": 0}, iter([(0, values)]))  # older
    rows = [measures.row(claim, measured.load(tmp_path)) for claim in by_command("claims")]
    assert all((row.estimate.n, row.estimate.clusters) == (2, 2) and row.verdict for row in rows)
    shown = [row for found in _claims(tmp_path)["papers"].values() for row in found]
    assert [row[2] for row in shown if row[2] != "—" and not row[2].startswith("—;")] == [
        verdicts.cells(row, {"claims": "a"})[2] for row in rows
    ]


MODEL = {"name": "embedded", "revision": "r", "dtype": "float32"}
CONFIG = {"name": "docqa_mini", "revision": "s", "default_limit": 4}


class TestMeasuring:
    def test_a_stopped_call_continues_with_what_is_missing(self, tmp_path):
        file, of = measured.path(tmp_path, "docqa_mini"), measured.settings(CONFIG, MODEL)
        a, b, c, d = measured.missing(tmp_path, CONFIG, MODEL, None)  # in the order of limit=

        def stops():
            yield a, {"page": "p0", "noise": 0.5}
            yield c, {"page": "p1", "noise": NAN}
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            measured.fill(file, of, stops())
        assert measured.missing(tmp_path, CONFIG, MODEL, None) == [b, d]
        assert measured.missing(tmp_path, CONFIG, MODEL, 2) == [b]
        assert max(measured.missing(tmp_path, CONFIG, MODEL, 1000)) == 99  # all there are
        measured.fill(file, of, iter([(b, {"page": "p0", "noise": 1.0})]))
        noise = {a: 0.5, b: 1.0, c: None}
        assert [sample["noise"] for sample in measured.load(tmp_path)] == [noise[i] for i in sorted(noise)]

    def test_another_model_or_definition_starts_anew(self, tmp_path, monkeypatch):
        file = measured.path(tmp_path, "docqa_mini")
        (first,) = measured.missing(tmp_path, CONFIG, MODEL, 1)
        measured.fill(file, measured.settings(CONFIG, MODEL), iter([(first, {"page": "p"})]))
        assert measured.missing(tmp_path, CONFIG, MODEL, 1) == []
        assert measured.missing(tmp_path, CONFIG, {**MODEL, "revision": "t"}, 1) == [first]
        assert measured.missing(tmp_path, {**CONFIG, "revision": "t"}, MODEL, 1) == [first]
        monkeypatch.setattr(measured, "_VERSION", 99)
        assert measured.missing(tmp_path, CONFIG, MODEL, 1) == [first]

    def test_a_broken_file_is_named(self, tmp_path):
        file = measured.path(tmp_path, "docqa_mini")
        file.parent.mkdir()
        file.write_text("{")
        with pytest.raises(UserError, match="docqa_mini.json"):
            measured.load(tmp_path)

    def test_nothing_missing_loads_no_model(self, tmp_path, monkeypatch):
        from kvbench.planning import parsing
        from kvbench.running import run

        of = {"model": [MODEL], "benchmark": [{**CONFIG, "name": name} for name in cells.QUESTIONS]}
        monkeypatch.setattr(parsing, "resolved", lambda words: of)
        monkeypatch.setattr(run, "load_model", lambda config: pytest.fail("the model was loaded"))
        for config in of["benchmark"]:
            file = measured.path(tmp_path, config["name"])
            (first,) = measured.missing(tmp_path, config, MODEL, 1)
            measured.fill(file, measured.settings(config, MODEL), iter([(first, {"page": "p"})]))
        measured.measure(tmp_path, limit=1)


class TestMeasuredFigures:
    def samples(self, **columns):
        n = len(next(iter(columns.values())))
        return [{"page": f"p{i // 2}", **{k: v[i] for k, v in columns.items()}} for i in range(n)]

    def test_a_mean_leaves_out_what_is_not_defined(self):
        found = prompts.difference(self.samples(a=[3, None, 5, 4], b=[1, 1, 1, 4]), "a", "b")
        assert (found.value, found.n, found.clusters) == (2, 3, 2)

    def test_one_layer_and_the_mean_over_all(self):
        samples = self.samples(x=[[1, 2, 6], [3, 2, 7]], y=[0.5, 1.5])
        assert prompts.layer(samples, "x", 0).value == 2
        assert prompts.average(samples, "x").value == pytest.approx((3 + 4) / 2)
        assert prompts.average(samples, "y").value == 1

    def test_selection_time_is_in_hundredths_of_the_prefill(self):
        samples = self.samples(select_base=[3, 4], select_bacon=[7, 4], prefill=[100, 50])
        assert prompts.selection_time(samples).value == pytest.approx((4 + 0) / 2)

    def test_the_lowest_layer(self):
        found = prompts.lowest_layer(self.samples(x=[[1, 0.2, 3], [0, 0.4, 3], [2, 0.3, 0]]), "x")
        assert found.value == pytest.approx(0.3)

    def test_thirds(self):
        samples = self.samples(x=[[6.0, 6, 1, 1, 2, 2]] * 4)
        assert prompts.thirds(samples, "x", 0, 1).value == 5
        assert prompts.thirds(samples, "x", 2, 1).value == 1
        assert prompts.thirds(samples, "x", 1).value == 1 - (6 + 2) / 2

    def test_nothing_measured_is_a_hole(self):
        assert all(measures.row(claim, []).estimate is None for claim in by_command("observe"))
