"""Rows of claims as text or Markdown. Commands stand below the table, by letter."""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence

from kvbench.analysis.tables.fill import word
from kvbench.claims.row import FEWEST, ClaimRow

COLUMNS = ["claim", "the paper", "ours [95 % CI]", "n", "holds if", "verdict", "from"]


def render(rows: Sequence[ClaimRow], store: str, format: str, width: int) -> str:
    """All papers one after another, then the commands."""
    papers, commands = parts(rows, store)
    ending = [
        "*holds*: the whole interval lies where the claim puts it; *does not hold*: all of it outside;",
        f"*undecided*: it reaches across, or has fewer than {FEWEST} pages. n: samples (pages). "
        "— is missing; its command fills it.",
    ]
    if format == "markdown":
        blocks = [_markdown(paper, found) for paper, found in papers.items()]
        lines = [f"- ({letter}) `{line}`" for letter, line in commands.items()]
    else:
        blocks = [_text(paper, found, width) for paper, found in papers.items()]
        lines = [f"  ({letter}) {line}" for letter, line in commands.items()]
        ending = [line.replace("*", "") for line in ending]
    return "\n".join([*blocks, *ending, "", *lines])


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
    ours, n = "—", "—"
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
    return [claim.text, claim.figure, ours, n, wanted, row.verdict or "—", letter]


def _text(paper: str, rows: Sequence[Sequence[str]], width: int) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, ratio in zip(COLUMNS, (8, 7, 6, None, 6, None, None), strict=True):
        table.add_column(name, overflow="fold", ratio=ratio, no_wrap=name in ("n", "from"))
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=out, width=width, highlight=False).print(table)
    lines = [line.rstrip() for line in out.getvalue().split("\n")]
    return "\n".join([paper, "═" * len(paper), *lines])


def _markdown(paper: str, rows: Sequence[Sequence[str]]) -> str:
    def line(found: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in found) + " |"

    lines = [f"**{paper}**", "", line(COLUMNS), line(["---"] * len(COLUMNS)), *map(line, rows)]
    return "\n".join([*lines, ""])
