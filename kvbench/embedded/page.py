"""A page of tiles: its cells, fields and questions, and where each stands."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvbench.embedded import vocabulary as V

DOCUMENTS = ("receipt", "form", "table", "notice")
KINDS = (*DOCUMENTS, "scene", "chart")
LEAST_TILES = 240

_LISTS = (V.ADJECTIVES, V.NOUNS, V.ITEMS, V.PLACES, V.NAMES, V.CITIES, V.ANIMALS)
#: Words that no training page shows: every fifth of each list.
HELD_OUT = frozenset(word for words in _LISTS for i, word in enumerate(words) if i % 5 == 2)


@dataclass
class Tile:
    """One drawn tile: its class, its typographic role and its alignment in the tile ('l', 'c' or 'r')."""

    token: int
    role: str = "body"
    align: str = "l"


@dataclass
class Field:
    """A labelled value and where both stand (tile indices in reading order)."""

    label: str
    value: str
    label_tiles: list[int]
    value_tiles: list[int]


@dataclass
class Question:
    question: str
    answer: str
    evidence: dict[str, list[int]]  # {"label": tiles, "value": tiles}
    split: str = ""  # charts: human_test or augmented_test


@dataclass
class Page:
    kind: str
    seed: str
    columns: int
    rows: int
    cells: dict[int, Tile] = field(default_factory=dict)
    marks: list[tuple] = field(default_factory=list)  # (what, row, column, rows, columns) for the drawing
    fields: list[Field] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    caption: str = ""
    captions: list[str] = field(default_factory=list)  # five references, the canonical one first
    description: str = ""
    descriptions: list[str] = field(default_factory=list)  # three references, the canonical one first

    def classes(self) -> list[int]:
        """Vocabulary class of every tile in reading order, length rows * columns."""
        return [self.cells[i].token if i in self.cells else V.BLANK for i in range(self.rows * self.columns)]
