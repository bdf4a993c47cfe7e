"""Rows of claims as records, one a paper. Commands stand below the last, by letter."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kvbench import rendering
from kvbench.analysis.tables.fill import word
from kvbench.claims.row import FEWEST, ClaimRow

LEGEND = (
    "holds: the whole interval lies where the claim puts it; does not hold: all of it outside; undecided: it"
    f" reaches across, or has fewer than {FEWEST} pages. n: samples (pages). {rendering.MISSING} is missing;"
    " its command fills it."
)
COLUMNS = ["claim", "the paper", "ours [95 % CI]", "n", "holds if", "verdict", "from"]


def render(rows: Sequence[ClaimRow], store: str, format: str, width: int | None = None) -> str:
    """All papers one after another, then the commands."""
    papers, commands = parts(rows, store)
    words = len(COLUMNS)
    if format == "csv":  # which has no notes
        for found in papers.values():
            found[:] = [[*row[:-1], commands[row[-1].strip("()")]] for row in found]
    records = [rendering.plain(paper, COLUMNS, found, left=words) for paper, found in papers.items()]
    records[-1].notes = [LEGEND, *(f"  ({letter}) {line}" for letter, line in commands.items())]
    return rendering.render(records, format, width)


def parts(rows: Sequence[ClaimRow], store: str) -> tuple[dict[str, list[list[str]]], dict[str, str]]:
    """By paper its rows as strings in COLUMNS; by letter the command behind them."""
    letters: dict[str, str] = {}
    papers: dict[str, list[list[str]]] = {}
    for row in rows:
        letters.setdefault(row.claim.command, chr(ord("a") + len(letters)))
        papers.setdefault(row.claim.paper, []).append(cells(row, letters))
    where = shlex.quote(word("store", store))
    return papers, {letter: f"kvbench {command} {where}" for command, letter in letters.items()}


def cells(row: ClaimRow, letters: dict[str, str]) -> list[str]:
    """The strings of one row, in COLUMNS."""
    claim, estimate = row.claim, row.estimate
    ours, n = rendering.MISSING, rendering.MISSING
    if estimate is not None:
        digits = claim.digits
        defined = estimate.value == estimate.value
        ours = f"{estimate.value:.{digits}f}" if defined else "not defined"
        if defined and not estimate.counted:
            known = estimate.low == estimate.low
            ours += f" [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]" if known else " [no interval]"
        n = f"{estimate.n} ({estimate.clusters})"
    note = (estimate.note if estimate else row.note) or ""
    ours = f"{ours}; {note}" if note else ours
    letter = f"({letters[claim.command]})"
    wanted = f"{claim.estimate}: {claim.region}"
    return [claim.text, claim.figure, ours, n, wanted, row.verdict or rendering.MISSING, letter]
