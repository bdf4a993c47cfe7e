"""The measures that claims.yaml names, and a claim's row from one of them.

A measure takes the data that the claim's command produces: prompts' values for ``kvbench claims`` and
``kvbench observe``, a store's cells for ``kvbench run``.
"""

from __future__ import annotations

from typing import Any

from kvbench.claims import cells, prompts, reselection
from kvbench.claims.row import Claim, ClaimRow, Finding, Hole
from kvbench.errors import UserError

MEASURES = {
    function.__name__: function
    for function in (
        *(prompts.difference, prompts.average, prompts.layer, prompts.lowest_layer, prompts.thirds),
        prompts.selection_time,
        cells.gap,
        *(reselection.fidelity, reselection.against, reselection.recovered, reselection.changed),
        *(reselection.against_best_threshold, reselection.against_threshold_at_equal_share),
        *(reselection.rate, reselection.gap_correlation),
        *(reselection.separated, reselection.separated_by_rouge),
    )
}


def figure(claim: Claim, data: Any) -> Finding:
    """Our figure for a claim. Raises Hole or UserError where the data do not hold it."""
    measure = {claim.measure: []} if isinstance(claim.measure, str) else claim.measure
    ((name, arguments),) = measure.items()
    if isinstance(arguments, list):
        return MEASURES[name](data, *arguments)
    return MEASURES[name](data, **arguments)


def row(claim: Claim, data: Any) -> ClaimRow:
    """A claim with our figure, or with what is missing."""
    try:
        return ClaimRow(claim, figure(claim, data))
    except (Hole, UserError) as hole:
        return ClaimRow(claim, None, str(hole))
