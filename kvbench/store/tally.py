"""How far a (model, benchmark) is: counts read from its journals, without keeping the answers.

A tally remembers how far it has read, so looking again costs only what is new.  It takes no lock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvbench.store import journal, layout
from kvbench.store.responses import Group, group_of

ANSWERED, FAILED = 1, 2
# An answer as ``journal.seal`` spells it, keys sorted: three of its members, without parsing the tokens.
# ``,"seconds":`` cannot stand inside a string, where the quote would be escaped.
_ANSWER = re.compile(rb'\{"cell":"([^"\\]+)","index":(\d+),.*?,"seconds":([-+.\deE]+),')


@dataclass
class Shard:
    """One journal: answers, seconds spent on them, when it last grew (epoch seconds), damaged lines.

    ``mine`` are the answers of the tally's cells alone; a folder may hold those of earlier versions too.
    """

    number: int = 0
    shards: int = 1
    answers: int = 0
    mine: int = 0
    seconds: float = 0.0
    grew: float = 0.0
    damaged: int = 0
    read: int = 0
    inode: int = 0
    last_pass: tuple[int, float] | None = None

    def owned(self, size: int) -> int:
        """Samples of ``size`` that are this shard's."""
        return len(range(self.number, size, self.shards))


@dataclass
class Tally:
    """The cells of a folder with one byte per sample, and its journals by name."""

    folder: Path
    cells: list[layout.Cell]
    states: dict[str, bytearray] = field(default_factory=dict)
    shards: dict[str, Shard] = field(default_factory=dict)
    # Samples asked for by (seed, prompt); None: what earlier releases noted for all of a folder's alike.
    sizes: dict[Group | None, int] = field(default_factory=dict)

    left_out: set[int] = field(default_factory=set)  # samples that no cell counts

    def __post_init__(self) -> None:
        self._digests = {cell.digest for cell in self.cells}

    def asked(self, cell: layout.Cell) -> int:
        """Samples asked of a cell; 0: not known yet."""
        size = self.sizes.get((cell.seed, cell.prompt), self.sizes.get(None, 0))
        return max(0, size - len(self.left_out))

    @property
    def size(self) -> int:
        """Answers asked for; 0 while that of some cell is not known."""
        asked = [self.asked(cell) for cell in self.cells]
        return sum(asked) if all(asked) else 0

    def update(self) -> None:
        """Read what the journals gained."""
        for path in layout.journals(self.folder):
            shard = self.shards.setdefault(path.name, _shard(path.name))
            found = path.stat()
            if shard.inode not in (0, found.st_ino) or found.st_size < shard.read:  # repaired or cut off
                self.states.clear()
                self.left_out.clear()
                self.shards.clear()
                return self.update()
            shard.inode, shard.grew = found.st_ino, found.st_mtime
            for line in journal.raw(path, shard.read):
                shard.read += len(line) + 1
                if journal.payload(line) is None:
                    shard.damaged += 1
                elif answer := _ANSWER.match(line):
                    cell, index, seconds = answer.groups()
                    self._answer(cell.decode(), int(index), float(seconds), shard)
                else:
                    self._add(journal.unseal(line) or {}, shard, path)
        return None

    def _add(self, record: dict[str, Any], shard: Shard, path: Path) -> None:
        """Any record; most answers do not come here."""
        if "run" in record:
            journal.check_format(record, path)
        elif "size" in record:
            group = group_of(record)
            self.sizes[group] = max(self.sizes.get(group, 0), record["size"])
        elif "error" in record:
            states, index = self._states(record["cell"], record["index"]), record["index"]
            states[index] = states[index] or FAILED
            if record.get("excluded"):
                self.left_out.add(index)
        elif "cell" in record:
            self._answer(record["cell"], record["index"], record["seconds"], shard)

    def _answer(self, cell: str, index: int, seconds: float, shard: Shard) -> None:
        self._states(cell, index)[index] = ANSWERED
        shard.answers += 1
        shard.mine += cell in self._digests
        # The cells of a pass stand together and share its seconds.
        if shard.last_pass != (index, seconds):
            shard.last_pass = (index, seconds)
            shard.seconds += seconds

    def _states(self, cell: str, index: int) -> bytearray:
        """The samples of a cell, with room for ``index``."""
        states = self.states.setdefault(cell, bytearray())
        if index >= len(states):
            states.extend(bytes(index + 1 - len(states)))
        return states

    def done(self, cell: layout.Cell) -> int:
        return self.states.get(cell.digest, bytearray()).count(ANSWERED)

    def failed(self, cell: layout.Cell) -> int:
        states = self.states.get(cell.digest, bytearray())
        apart = sum(index < len(states) and states[index] == FAILED for index in self.left_out)
        return states.count(FAILED) - apart

    @property
    def missing(self) -> int:
        return sum(max(0, self.asked(cell) - self.done(cell)) for cell in self.cells)

    def owned(self, shard: Shard) -> int:
        """Answers asked of a shard."""
        return sum(shard.owned(self.asked(cell)) for cell in self.cells)

    @property
    def pace(self) -> float | None:
        """Seconds per answer so far, with as many cells in a pass as there were; None without answers."""
        answers = sum(shard.answers for shard in self.shards.values())
        return sum(shard.seconds for shard in self.shards.values()) / answers if answers else None


def _shard(name: str) -> Shard:
    found = re.fullmatch(r"journal-(\d+)of(\d+)\.jsonl", name)
    return Shard(int(found[1]), int(found[2])) if found else Shard()


def tallies(store: Path) -> list[Tally]:
    """One tally per (model, benchmark) of a store, up to date."""
    groups: dict[Path, list[layout.Cell]] = {}
    for cell in layout.cells(store):
        groups.setdefault(cell.folder, []).append(cell)
    found = [Tally(folder, cells) for folder, cells in groups.items()]
    for tally in found:
        tally.update()
    return found
