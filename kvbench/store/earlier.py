"""Answers of an earlier version of a method's source: kept apart, counted, and said in one sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from kvbench.store import clean, layout
from kvbench.support.words import counted


def notice(cells: Iterable[layout.Cell]) -> str | None:
    """The sentence about the earlier ones among cells; None without their answers."""
    folders: dict[Path, set[str]] = defaultdict(set)
    for cell in cells:
        if cell.earlier:
            folders[cell.folder].add(cell.digest)
    answers = sum(clean.count(folder, digests) for folder, digests in folders.items())
    if not answers:
        return None
    number = counted(sum(map(len, folders.values())), "cell")
    are = "is" if answers == 1 else "are"
    return (
        f"{counted(answers, 'answer')} of {number} {are} of an earlier version of "
        "the method's source: neither shown nor compared; the same `kvbench run` computes them anew, "
        "with --clean-earlier it deletes the old ones."
    )


def of_cells(asked: Iterable[layout.Cell]) -> list[layout.Cell]:
    """What the folders of cells hold of their earlier versions: alike but for options that came or went."""
    wanted: dict[Path, list[layout.Cell]] = defaultdict(list)
    for cell in asked:
        wanted[cell.folder].append(cell)
    return [
        old
        for folder, cells in wanted.items()
        for old in layout.cells_of(folder)
        if old.earlier and any(_alike(old, cell) for cell in cells)
    ]


def _alike(old: layout.Cell, new: layout.Cell) -> bool:
    names = ("method", "budget", "seed", "prompt")
    if any(getattr(old, name) != getattr(new, name) for name in names):
        return False
    before, now = old.options, new.options
    return all(before[key] == now[key] for key in before.keys() & now.keys())


def of_store(store: Path | str) -> str | None:
    """``notice`` of all cells of a store."""
    return notice(layout.every_cell(store))
