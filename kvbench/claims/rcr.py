"""RCR's claims as rows: what the paper says, and where the figures of ``reselection`` must lie."""

from __future__ import annotations

from collections.abc import Callable

from kvbench.analysis import drift
from kvbench.claims.cells import ABOVE, BELOW, Cells, Spec, gap
from kvbench.claims.reselection import (
    SHORT,
    against,
    against_best_threshold,
    against_threshold_at_equal_share,
    changed,
    gap_correlation,
    mean,
    rate,
    recovered,
    reference_rouge,
    scored,
    separated,
)
from kvbench.claims.row import Claim, Estimate, Region, Test

RATE = 0.4  # the usual target of refreshed layer-steps
DESCRIPTIONS = "run experiment=rcr_detailcaps"
EXACT = "run experiment=rcr_threshold_exact"
ANSWERS = "run experiment=rcr_oracle_vqa"


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
            against_best_threshold("lowrank"),
        ),
        (
            "rcr is above a fixed threshold at equal refreshed share",
            "+.020 to +.048 over any (DetailCaps, text)",
            "difference in fidelity:",
            ABOVE,
            DESCRIPTIONS,
            3,
            against_threshold_at_equal_share,
        ),
        (
            "rcr is above a fixed threshold with exact drift and re-selection",
            "not in the paper",
            "difference in fidelity:",
            ABOVE,
            EXACT,
            3,
            against_best_threshold("exact"),
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
