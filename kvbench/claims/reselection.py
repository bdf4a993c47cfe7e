"""Measures of re-selection, from a store's scored cells and traces. Long answers are judged by fidelity."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench import benchmarks
from kvbench.analysis import correlation, policies
from kvbench.analysis.bootstrap import difference
from kvbench.analysis.resampling import interval
from kvbench.analysis.scoring import benchmark_config
from kvbench.benchmarks.fidelity import rouge_l
from kvbench.claims.cells import MODEL, Cells
from kvbench.claims.row import Finding, Hole
from kvbench.store.responses import load_folder

if TYPE_CHECKING:
    import pandas

    from kvbench.analysis.results import Entry

LONG = "describe_mini"
DYNAMIC = ("exact", "threshold", "rcr", "quest", "arkvale", "infinigen")


def fidelity(cells: Cells, policy: str) -> Finding:
    """Mean fidelity of a policy's descriptions."""
    group, label = cells.policy(LONG, policy)
    found = policies.fidelity(group, against=())
    return _of(found[found["policy"] == label].iloc[0])


def against(cells: Cells, policy: str, other: str) -> Finding:
    """Difference in fidelity of two policies' descriptions."""
    group, label = cells.policy(LONG, policy)
    return _of(policies.compare(group, label, cells.policy(LONG, other)[1]))


def against_best_threshold(cells: Cells, detector: str) -> Finding:
    """rcr minus the fixed threshold whose mean fidelity is highest on these very samples."""
    group, label, names = _thresholds(cells, detector)
    best = max(names, key=lambda name: policies.scored(policies.of(group, name))["value"].mean())
    return dataclasses.replace(_of(policies.compare(group, label, best)), note=f"best: {best}")


def against_threshold_at_equal_share(cells: Cells) -> Finding:
    """rcr minus the fixed threshold whose share of refreshed layer-steps is nearest to rcr's own."""
    group, label, names = _thresholds(cells, "lowrank")
    rates = policies.rates(group)
    share = rates[rates["quantity"] == "refreshed"].set_index("policy")["value"]
    share = share[[label, *names]].dropna()
    if label not in share or len(share) < 2:
        raise Hole(f"no traces of rcr and a fixed threshold on {LONG}: run them with trace=true")
    nearest = (share.drop(label) - share[label]).abs().idxmin()
    note = f"{nearest} refreshes {share[nearest]:.2f}, rcr {share[label]:.2f}"
    return dataclasses.replace(_of(policies.compare(group, label, nearest)), note=note)


def _thresholds(cells: Cells, detector: str) -> tuple[pandas.DataFrame, str, list[str]]:
    """(selection, rcr's label, labels of the fixed thresholds with a detector). Raises Hole."""
    group, label = cells.policy(LONG, "rcr")
    of_detector = group["options"].map(lambda options: options.get("detector") == detector)
    known = policies.scored(group[(group["name"] == "threshold") & of_detector])
    names = list(known["policy"].unique())
    if not names:
        raise Hole(f"no scored cell with refresh=threshold refresh.detector={detector} on {LONG}")
    return group, label, names


def recovered(cells: Cells) -> Finding:
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
    return Finding(float(np.average(share, weights=lost)), low, high, len(shared), len(set(pages)))


def rate(cells: Cells, policy: str, quantity: str, benchmark: str = LONG) -> Finding:
    """Mean over layer-steps of what the traces of a policy record."""
    group, label = cells.policy(benchmark, policy)
    found = policies.rates(group)
    row = found[(found["policy"] == label) & (found["quantity"] == quantity)].iloc[0]
    if not row["n"]:
        raise Hole(f"{label} on {benchmark}: {row['note']}")
    return _of(row)


def changed(cells: Cells) -> Finding:
    """Share of adjacent steps whose most attended prefix position differs, without compression."""
    whole = cells.drift.uncompressed
    found = policies.rates(whole[(whole["model"] == MODEL) & (whole["benchmark"] == LONG)])
    found = found[found["quantity"] == "stayed"]
    if found.empty:
        raise Hole(f"no traced fullkv on {LONG}")
    stayed = _of(found.iloc[0])
    return dataclasses.replace(stayed, value=1 - stayed.value, low=1 - stayed.high, high=1 - stayed.low)


def gap_correlation(cells: Cells, factor: str) -> Finding:
    """Spearman's ρ of (infinigen - fixed threshold) with drift or length, over descriptions."""
    group, label = cells.policy(LONG, "threshold")
    cells.policy(LONG, "infinigen")
    found = correlation.correlations(group)
    chosen = (found["policy"] == label) & (found["gap_to"] == "infinigen") & (found["factor"] == factor)
    row = found[chosen].iloc[0]
    if not row["n"]:
        raise Hole(f"{label}: {row['note']}")
    pages = policies.of(group, label)["cluster"].nunique()
    note = f"{label}: {row['note']}" if row["note"] else label
    return Finding(row["rho"], row["low"], row["high"], int(row["n"]), pages, note=note)


def separated(cells: Cells, metric: str) -> Finding:
    """Pairs of dynamic policies that differ in a metric."""

    def values(entry: Entry) -> Mapping[int, float]:
        found = entry.scores.per_sample.get(metric)
        if not found:
            raise Hole(f"{metric} of {LONG} is not scored")
        return found

    return _separated(cells, values)


def separated_by_rouge(cells: Cells) -> Finding:
    """Pairs of dynamic policies that differ in ROUGE-L against the page's own descriptions."""
    return _separated(cells, reference_rouge)


def reference_rouge(entry: Entry) -> dict[int, float]:
    """ROUGE-L of a cell's stored descriptions against the page's own, by sample."""
    benchmark = benchmarks.load(benchmark_config(entry.cell))
    answers = load_folder(entry.cell.folder).answers[entry.cell.digest]
    own = benchmark.references(sorted(answers))
    return {index: max(rouge_l(answers[index]["text"], text) for text in own[index]) for index in own}


def _separated(cells: Cells, values_of: Callable[[Entry], Mapping[int, float]]) -> Finding:
    """Pairs of dynamic policies whose difference excludes 0 at 95 % for all pairs together."""
    found = {name: _entry(cells, name) for name in DYNAMIC}
    values = {name: values_of(entry) for name, entry in found.items()}
    clusters = found[DYNAMIC[0]].scores.clusters
    pairs = list(combinations(DYNAMIC, 2))
    level = 1 - 0.05 / len(pairs)  # Bonferroni: of many pairs some would differ by chance
    gaps = [difference(values[a], values[b], (a, b), clusters=clusters, confidence=level) for a, b in pairs]
    count = sum(gap.significant for gap in gaps)
    return Finding(count, count, count, gaps[0].n, gaps[0].clusters, True, f"of {len(pairs)} pairs")


def _entry(cells: Cells, policy: str) -> Entry:
    group, label = cells.policy(LONG, policy)
    digest = policies.of(group, label)["cell"].iloc[0]
    return next(entry for entry in cells.entries if entry.cell.digest == digest)


def _of(found: Any) -> Finding:
    if found["value"] != found["value"]:
        raise Hole(found["note"])
    return Finding(*(found[key] for key in ("value", "low", "high", "n", "clusters")))
