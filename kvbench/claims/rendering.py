"""Rows of claims as text or Markdown. Commands stand below the table, by letter."""

from __future__ import annotations

import io
from collections.abc import Sequence

from kvbench.claims.row import Row

COLUMNS = ["claim", "the paper", "ours [95 % CI]", "n", "holds if", "verdict", "from"]


def render(rows: Sequence[Row], store: str, format: str, width: int) -> str:
    """All papers one after another, then the commands."""
    letters: dict[str, str] = {}
    for row in rows:
        letters.setdefault(row.claim.command, chr(ord("a") + len(letters)))
    papers = {row.claim.paper: [r for r in rows if r.claim.paper == row.claim.paper] for row in rows}
    commands = [f"kvbench {command} store={store}" for command in letters]
    if format == "markdown":
        blocks = [_markdown(paper, found, letters) for paper, found in papers.items()]
        lines = [f"- ({letter}) `{line}`" for letter, line in zip(letters.values(), commands, strict=True)]
    else:
        blocks = [_text(paper, found, letters, width) for paper, found in papers.items()]
        lines = [f"  ({letter}) {line}" for letter, line in zip(letters.values(), commands, strict=True)]
    ending = ["*holds*: the whole interval lies where the claim puts it; *does not hold*: all of it outside;"]
    ending.append("*undecided*: it reaches across. n: samples (pages). — is missing; its command fills it.")
    if format != "markdown":
        ending = [line.replace("*", "") for line in ending]
    return "\n".join([*blocks, *ending, "", *lines])


def cells(row: Row, letters: dict[str, str]) -> list[str]:
    """The strings of one row, in COLUMNS."""
    claim, estimate = row.claim, row.estimate
    ours, n = "—", "—"
    if estimate is not None:
        digits = claim.digits
        ours = f"{estimate.value:.{digits}f}"
        if not estimate.counted:
            known = estimate.low == estimate.low
            ours += f" [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]" if known else " [no interval]"
        n = f"{estimate.n} ({estimate.clusters})"
    note = (estimate.note if estimate else row.note) or ""
    ours = f"{ours}; {note}" if note else ours
    letter = f"({letters[claim.command]})"
    wanted = f"{claim.measure} {claim.region}"
    return [claim.text, claim.figure, ours, n, wanted, row.verdict or "—", letter]


def _text(paper: str, rows: Sequence[Row], letters: dict[str, str], width: int) -> str:
    from rich.console import Console
    from rich.table import Table

    out = io.StringIO()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, ratio in zip(COLUMNS, (8, 7, 6, None, 6, None, None), strict=True):
        table.add_column(name, overflow="fold", ratio=ratio, no_wrap=name in ("n", "from"))
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in cells(row, letters)))
    Console(file=out, width=width, highlight=False).print(table)
    lines = [line.rstrip() for line in out.getvalue().split("\n")]
    return "\n".join([paper, "═" * len(paper), *lines])


def _markdown(paper: str, rows: Sequence[Row], letters: dict[str, str]) -> str:
    def line(found: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in found) + " |"

    lines = [f"**{paper}**", "", line(COLUMNS), line(["---"] * len(COLUMNS))]
    for row in rows:
        found = cells(row, letters)
        if row.verdict:
            found[5] = f"*{row.verdict}*"
        lines.append(line(found))
    return "\n".join([*lines, ""])
