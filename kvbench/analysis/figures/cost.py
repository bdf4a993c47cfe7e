"""What an answer's faithfulness costs.

A journal's seconds are a sample's, shared by all cells of a job, so they are no method's cost. What decoding
costs is what each step reads, in vectors: a key and a value of each entry that a head holds and, with a
refresh, the vectors that it fetches from the full prefix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvbench.analysis.figures.style import colour, grid, legend, mark
from kvbench.analysis.results import Entry, mean

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

FIDELITY = "fidelity_rougeL"


def cost_against_fidelity(found: Sequence[Entry], reads: dict[str, float]) -> Figure | None:
    """``reads``: by digest, mean vectors per head and step from the full prefix (0 for one-shot cells)."""
    cells = [
        entry
        for entry in found
        if entry.scores is not None
        and entry.kept
        and math.isfinite(entry.scores.metrics.get(FIDELITY, math.nan))
    ]
    if not any(entry.cell.budget is not None for entry in cells):
        return None
    benchmarks = list(dict.fromkeys(entry.cell.benchmark for entry in cells))
    labels = list(dict.fromkeys(entry.label for entry in cells))
    figure, axes = grid(1, len(benchmarks), 2.6, 2.6)
    for panel, benchmark in zip(axes[0], benchmarks, strict=True):
        panel.set_title(benchmark)
        for label in labels:
            here = [e for e in cells if e.cell.benchmark == benchmark and e.label == label]
            here.sort(key=lambda e: e.kept["mean"])
            if not here:
                continue
            costs = [2 * e.kept["mean"] + reads.get(e.cell.digest, 0.0) for e in here]
            values = [e.scores.metrics[FIDELITY] for e in here]
            bands = [mean(e, FIDELITY) for e in here]
            errors = [
                [max(0.0, value - band.low) for value, band in zip(values, bands, strict=True)],
                [max(0.0, band.high - value) for value, band in zip(values, bands, strict=True)],
            ]
            panel.errorbar(
                costs,
                values,
                yerr=[[0.0 if math.isnan(x) else x for x in side] for side in errors],
                color=colour(label, labels),
                marker=mark(label, labels),
                markersize=3.5,
                linewidth=0.9,
                elinewidth=0.5,
                label=label,
            )
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlabel("vectors read per KV head and step")
    axes[0, 0].set_ylabel("fidelity (ROUGE-L)")
    legend(figure, axes)
    return figure


def reads_of(samples: pandas.DataFrame) -> dict[str, float]:
    """Mean reads by cell digest from ``kvbench.analysis.drift.load``, samples weighted by their steps."""
    traced = samples[samples["reads"].notna()]
    return {
        str(cell): float((mine["reads"] * mine["layer_steps"]).sum() / mine["layer_steps"].sum())
        for cell, mine in traced.groupby("cell", sort=False)
    }
