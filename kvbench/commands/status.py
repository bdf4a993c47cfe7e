"""``kvbench status``: a store's progress, pace and failures, by benchmark, shard and cell."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from kvbench.commands import DONE, INCOMPLETE
from kvbench.errors import UserError
from kvbench.planning.parsing import store_parser, store_settings
from kvbench.store import earlier
from kvbench.store.tally import Tally, tallies
from kvbench.support.words import counted, duration

ACTIVE = 60.0  # a journal that grew this many seconds ago, or three answers' time, has a worker
PLAIN, LIVE = 30.0, 2.0  # seconds between two looks: lines in a log, a table on a terminal


def main(arguments: list[str]) -> int:
    parser = store_parser(
        "status",
        "Show what a store has, lacks and failed at, its pace and the time left; exit code 1 while"
        " something is missing.",
    )
    parser.add_argument("--watch", action="store_true", help="look again until all is answered")
    parser.add_argument("--cells", action="store_true", help="list every cell, not only those with failures")
    options = parser.known(arguments)
    settings = store_settings(options.settings, {"store": "runs/default"})
    return DONE if show(Path(settings["store"]), options.watch, options.cells) else INCOMPLETE


def show(store: Path, watch: bool, list_cells: bool) -> bool:
    """Print the status, again and again with ``watch`` until all is answered.  Returns whether it is."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    found = tallies(store)
    old = earlier.of_store(store)
    if not found:
        if old:
            raise UserError(f"{store} holds nothing else: {old}")
        raise UserError(f"{store} holds no cells: name a store that `kvbench run` wrote, store=DIR.")
    if not watch:
        console.print(_table(found, store, list_cells))
        console.print(sentence(found), markup=False)
        if old:
            console.print(old, markup=False, soft_wrap=True)
        return complete(found)
    if console.is_terminal:
        with Live(_table(found, store, list_cells), console=console, auto_refresh=False) as live:
            while not complete(found):
                time.sleep(LIVE)
                _refresh(found)
                live.update(_table(found, store, list_cells), refresh=True)
    else:
        while not complete(found):
            print(sentence(found), flush=True)
            time.sleep(PLAIN)
            _refresh(found)
    print(sentence(found), flush=True)
    return True


def _refresh(found: list[Tally]) -> None:
    for tally in found:
        tally.update()


def complete(found: Sequence[Tally]) -> bool:
    """Whether every cell has every sample that was asked of its benchmark."""
    return all(tally.size and not tally.missing for tally in found)


def workers(tally: Tally) -> int:
    """Journals that are growing; a clock that went back does not make one idle."""
    limit = max(ACTIVE, 3 * len(tally.cells) * (tally.pace or 0))
    return sum(time.time() - shard.grew < limit for shard in tally.shards.values())


def sentence(found: Sequence[Tally]) -> str:
    """One line: answers, failures, pace, time left."""
    done = sum(tally.done(cell) for tally in found for cell in tally.cells)
    missing = sum(tally.missing for tally in found)
    failed = sum(tally.failed(cell) for tally in found for cell in tally.cells)
    damaged = sum(shard.damaged for tally in found for shard in tally.shards.values())
    text = f"{counted(done, 'answer')}, {missing} missing, {failed} failed"
    if damaged:
        text += f", {counted(damaged, 'damaged record')} that the next run computes again"
    uncounted = sum(not tally.size for tally in found)
    if uncounted:
        text += f"; {counted(uncounted, 'benchmark')} without a count of samples yet"
    if missing:
        paces = [(tally.missing, tally.pace) for tally in found if tally.missing]
        if any(pace is None for _, pace in paces):
            return f"{text}; no time left can be told before each benchmark has an answer"
        work = sum(count * pace for count, pace in paces)
        active = sum(workers(tally) for tally in found)
        left = f"about {duration(work / active)} left with {active} at work" if active else "nobody at work"
        text += f"; {duration(work)} of work, {left}"
    return text


def _table(found: Sequence[Tally], store: Path, list_cells: bool) -> Table:
    table = Table(title=f"store {store}", title_justify="left")
    table.add_column("what")
    for name in ("answers", "of", "%", "failed", "s/answer", "last answer", "left"):
        table.add_column(name, justify="right")
    for tally in found:
        first = tally.cells[0]
        done = sum(map(tally.done, tally.cells))
        row = _counts(done, tally.size, sum(map(tally.failed, tally.cells)))
        pace = tally.pace
        grew = max((shard.grew for shard in tally.shards.values()), default=0)
        left = "" if pace is None else duration(tally.missing * pace) if tally.missing else "-"
        table.add_row(
            f"{first.model} / {first.benchmark} ({counted(len(tally.cells), 'cell')})",
            *row,
            f"{pace:.2f}" if pace is not None else "",
            _ago(grew),
            left,
        )
        if len(tally.shards) > 1:
            for name, shard in sorted(
                tally.shards.items(), key=lambda item: (item[1].shards, item[1].number)
            ):
                total = tally.owned(shard)
                pace = f"{shard.seconds / shard.answers:.2f}" if shard.answers else ""
                title = f"  shard {shard.number} of {shard.shards}" if shard.shards > 1 else f"  {name}"
                table.add_row(title, *_counts(shard.mine, total, None), pace, _ago(shard.grew), "")
        for cell in tally.cells:
            done, failed = tally.done(cell), tally.failed(cell)
            if list_cells or failed:
                budget = "" if cell.budget is None else f" budget={cell.budget}"
                table.add_row(
                    f"  {cell.method}{budget}", *_counts(done, tally.asked(cell), failed), "", "", ""
                )
    return table


def _counts(done: int, total: int, failed: int | None) -> tuple[str, str, str, str]:
    share = f"{100 * done / total:.0f}" if total else ""
    return str(done), str(total) if total else "?", share, "" if failed is None else str(failed)


def _ago(moment: float) -> str:
    return f"{duration(max(0.0, time.time() - moment))} ago" if moment else ""
