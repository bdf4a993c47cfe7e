"""RCR's claims, from the scored cells and traces of a store. Long answers are judged by fidelity."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench import benchmarks
from kvbench.analysis import correlation, drift, policies
from kvbench.analysis.bootstrap import difference
from kvbench.analysis.resampling import interval
from kvbench.analysis.scoring import benchmark_config
from kvbench.benchmarks.fidelity import rouge_l
from kvbench.claims.cells import ABOVE, BELOW, Cells, Spec, gap
from kvbench.claims.row import Claim, Estimate, Hole, Region, Test
from kvbench.store.responses import load_folder

if TYPE_CHECKING:
    from kvbench.analysis.results import Entry

LONG, SHORT = "describe_mini", ("docqa_mini", "textqa_mini")
RATE = 0.4  # the usual target of refreshed layer-steps
DYNAMIC = ("exact", "threshold", "rcr", "quest", "arkvale", "infinigen")
DESCRIPTIONS = "run experiment=rcr_detailcaps"
ANSWERS = "run experiment=rcr_oracle_vqa"


def mean(policy: str) -> Callable[[Cells], Estimate]:
    """Mean fidelity of a policy's descriptions."""

    def figure(cells: Cells) -> Estimate:
        group, label = cells.policy(LONG, policy)
        found = policies.fidelity(group, against=())
        return _of(found[found["policy"] == label].iloc[0])

    return figure


def against(policy: str, other: str) -> Callable[[Cells], Estimate]:
    """Difference in fidelity of two policies' descriptions."""

    def figure(cells: Cells) -> Estimate:
        group, label = cells.policy(LONG, policy)
        found = policies.compare(group, label, cells.policy(LONG, other)[1])
        return _of(found)

    return figure


def against_best_threshold(cells: Cells) -> Estimate:
    """rcr minus the fixed threshold whose mean fidelity is highest on these very samples."""
    group, label = cells.policy(LONG, "rcr")
    cells.policy(LONG, "threshold")
    names = group["policy"][group["name"] == "threshold"].unique()
    best = max(names, key=lambda name: policies.scored(policies.of(group, name))["value"].mean())
    return dataclasses.replace(_of(policies.compare(group, label, best)), note=f"best: {best}")


def recovered(cells: Cells) -> Estimate:
    """Share of the prefill oracle's loss that exact re-selection makes good, as a ratio of sums."""
    group, label = cells.policy(LONG, "exact")
    rows = policies.scored(policies.of(group, label)).sort_values("index")
    oracle = policies.series(policies.scored(policies.of(group, cells.policy(LONG, "oracle")[1])))
    exact, clusters = policies.series(rows), policies.clusters_of(rows)
    shared = [index for index in exact if index in oracle and oracle[index] < 1]
    if not shared:
        raise Hole("the oracle loses nothing that could be recovered")
    lost = np.array([1 - oracle[index] for index in shared])
    share = np.array([exact[index] - oracle[index] for index in shared]) / lost
    pages = [clusters[index] for index in shared]
    low, high = interval(share, clusters=pages, weights=lost)
    return Estimate(float(np.average(share, weights=lost)), low, high, len(shared), len(set(pages)))


def rate(policy: str, quantity: str, benchmark: str = LONG) -> Callable[[Cells], Estimate]:
    """Mean over layer-steps of what the traces of a policy record."""

    def figure(cells: Cells) -> Estimate:
        group, label = cells.policy(benchmark, policy)
        found = policies.rates(group)
        row = found[(found["policy"] == label) & (found["quantity"] == quantity)].iloc[0]
        if not row["n"]:
            raise Hole(f"{label} on {benchmark}: {row['note']}")
        return _of(row)

    return figure


def changed(cells: Cells) -> Estimate:
    """Share of adjacent steps whose most attended prefix position differs, under exact re-selection."""
    found = rate("exact", "stayed")(cells)
    return dataclasses.replace(found, value=1 - found.value, low=1 - found.high, high=1 - found.low)


def gap_correlation(factor: str) -> Callable[[Cells], Estimate]:
    """Spearman's ρ of (infinigen - fixed threshold) with drift or length, over descriptions."""

    def figure(cells: Cells) -> Estimate:
        group, label = cells.policy(LONG, "threshold")
        cells.policy(LONG, "infinigen")
        found = correlation.correlations(group)
        chosen = (found["policy"] == label) & (found["gap_to"] == "infinigen") & (found["factor"] == factor)
        row = found[chosen].iloc[0]
        if not row["n"]:
            raise Hole(f"{label}: {row['note']}")
        pages = policies.of(group, label)["cluster"].nunique()
        note = f"{label}: {row['note']}" if row["note"] else label
        return Estimate(row["rho"], row["low"], row["high"], int(row["n"]), pages, note=note)

    return figure


def scored(metric: str) -> Callable[[Entry], dict[int, float]]:
    """A cell's values of a metric by sample."""

    def values(entry: Entry) -> dict[int, float]:
        found = entry.scores.per_sample.get(metric)
        if not found:
            raise Hole(f"{metric} of {LONG} is not scored")
        return found

    return values


def reference_rouge(entry: Entry) -> dict[int, float]:
    """ROUGE-L of a cell's stored descriptions against the page's own, by sample."""
    benchmark = benchmarks.load(benchmark_config(entry.cell))
    answers = load_folder(entry.cell.folder).answers[entry.cell.digest]
    own = benchmark.references(sorted(answers))
    return {index: max(rouge_l(answers[index]["text"], text) for text in own[index]) for index in own}


def separated(values_of: Callable[[Entry], dict[int, float]]) -> Callable[[Cells], Estimate]:
    """Pairs of dynamic policies whose difference in a metric excludes 0 at 95 % for all pairs together."""

    def figure(cells: Cells) -> Estimate:
        found = {name: _entry(cells, name) for name in DYNAMIC}
        values = {name: values_of(entry) for name, entry in found.items()}
        clusters = found[DYNAMIC[0]].scores.clusters
        pairs = list(combinations(DYNAMIC, 2))
        sure = 1 - 0.05 / len(pairs)  # Bonferroni: of many pairs some would differ by chance
        gaps = [
            difference(values[a], values[b], (a, b), clusters=clusters, confidence=sure) for a, b in pairs
        ]
        count = sum(gap.sure for gap in gaps)
        return Estimate(count, count, count, gaps[0].n, gaps[0].clusters, True, f"of {len(pairs)} pairs")

    return figure


def _entry(cells: Cells, policy: str) -> Entry:
    group, label = cells.policy(LONG, policy)
    digest = policies.of(group, label)["cell"].iloc[0]
    return next(entry for entry in cells.entries if entry.cell.digest == digest)


def _of(found: Any) -> Estimate:
    if found["value"] != found["value"]:
        raise Hole(found["note"])
    return Estimate(*(found[key] for key in ("value", "low", "high", "n", "clusters")))


def tests() -> list[Test]:
    """Re-selection while decoding: 32 selected entries and a window of 32."""
    oracle: list[Spec] = [("snapkv+bacon refresh=oracle", {"window": 32})]
    full: list[Spec] = [("fullkv", {})]
    rows: list[tuple[str, str, str, Region, str, int, Callable[[Cells], Estimate]]] = [
        (
            "the prefill oracle is lossless on short answers",
            "TextVQA .851, uncompressed .848 (text)",
            "points against uncompressed:",
            Region(low=-1),
            ANSWERS,
            1,
            gap(oracle, full, SHORT, 64),
        ),
        (
            "the prefill oracle is not lossless on long answers",
            "fidelity .44 to .52 (DetailCaps, text)",
            "fidelity:",
            Region(high=0.95),
            DESCRIPTIONS,
            3,
            mean("oracle"),
        ),
        (
            "exact re-selection recovers most of what the oracle loses",
            "fidelity .44 to .52 → .48 to .61 (DetailCaps, text)",
            "share recovered:",
            Region(low=0.5),
            DESCRIPTIONS,
            3,
            recovered,
        ),
        (
            "the most attended prefix position changes often between adjacent steps",
            "it changes in 20 % (LLaVA) to 59 % (Qwen2-VL) of them (text)",
            "share of steps:",
            Region(low=0.2),
            DESCRIPTIONS,
            3,
            changed,
        ),
        (
            "rcr is above one-shot BACON",
            "+.114 to +.210 (DetailCaps, text)",
            "difference in fidelity:",
            ABOVE,
            DESCRIPTIONS,
            3,
            against("rcr", drift.ONE_SHOT),
        ),
        (
            "rcr is above any single fixed threshold",
            "+.020 to +.048 (DetailCaps, text)",
            "difference in fidelity:",
            ABOVE,
            DESCRIPTIONS,
            3,
            against_best_threshold,
        ),
        (
            "the refreshed share is near its target 0.4 on long answers",
            "40 to 48 % (DetailCaps, text)",
            "share of layer-steps:",
            Region(RATE - 0.05, RATE + 0.05),
            DESCRIPTIONS,
            3,
            rate("rcr", "refreshed"),
        ),
        *(
            (
                f"the refreshed share is above its target 0.4 on short answers ({name})",
                "above the target on TextCaps, in words (limits)",
                "share of layer-steps:",
                Region(low=RATE),
                ANSWERS,
                3,
                rate("rcr", "refreshed", name),
            )
            for name in SHORT
        ),
        (
            "a fixed threshold's gap to InfiniGen falls with drift",
            "Spearman -0.41, threshold 0.03 (DetailCaps, Qwen2-VL, text)",
            "Spearman's ρ:",
            BELOW,
            DESCRIPTIONS,
            2,
            gap_correlation("drift"),
        ),
        (
            "that gap does not go with length",
            "Spearman -0.01 (text)",
            "Spearman's ρ:",
            Region(-0.3, 0.3),
            DESCRIPTIONS,
            2,
            gap_correlation("length"),
        ),
        (
            "CIDEr does not separate the dynamic methods",
            "not separated, in words (limits)",
            "pairs that differ, 95 % for all together:",
            Region(high=1),
            DESCRIPTIONS,
            0,
            separated(scored("detailcaps_CIDEr")),
        ),
        (
            "nor does ROUGE-L against the page's own description",
            "not separated, in words (limits)",
            "pairs that differ, 95 % for all together:",
            Region(high=1),
            DESCRIPTIONS,
            0,
            separated(reference_rouge),
        ),
        (
            "fidelity separates the dynamic methods",
            "separated, in words (limits)",
            "pairs that differ, 95 % for all together:",
            Region(low=0),
            DESCRIPTIONS,
            0,
            separated(scored(drift.FIDELITY)),
        ),
        (
            "rcr reads as many vectors a step as its peers",
            "160·r with r near 0.4, peers 64 (text)",
            "vectors per KV head and step:",
            Region(57.6, 70.4),
            DESCRIPTIONS,
            1,
            rate("rcr", "reads"),
        ),
    ]
    return [
        (Claim("RCR", text, figure, measure, region, command, digits), compute)
        for text, figure, measure, region, command, digits, compute in rows
    ]
