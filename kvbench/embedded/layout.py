"""What the kinds of pages share: words and values of a split, a grid to write on, questions and captions."""

from __future__ import annotations

import random

from kvbench.embedded import vocabulary as V
from kvbench.embedded.page import HELD_OUT, Field, Page, Question, Tile

_ASK = {
    "value": ("What is the {0}?", "What is the value of {0}?", "What is given for {0}?"),
    "price": ("What is the price of {0}?", "How much is the {0}?", "What does the {0} cost?"),
    "number": ("What is the number of {0}?", "What number is given for {0}?"),
    "date": ("What is the date of {0}?", "Which date is given for {0}?"),
    "room": ("Which room is {0} in?", "What is the room of {0}?"),
    "opens": ("When does the {0} open?", "On which day does the {0} open?"),
    "with": ("Who has the {0}?", "Who is the {0} with?"),
    "sign": (
        "What number is on the sign of {0}?",
        "What is the number of the {0}?",
        "What number does the {0} show?",
    ),
    "signword": ("What word is on the sign of {0}?", "What name does the {0} show?"),
    "bar": ("What is the value of {0}?", "How many units are shown for {0}?"),
}


class Content:
    """Random words and values of one split: training never draws what is held out, test values always are."""

    def __init__(self, rng: random.Random, test: bool):
        self.rng, self.test = rng, test

    def words(self, pool: list[str]) -> list[str]:
        """Words a label may use: all of them in tests, only the training part otherwise."""
        return [word for word in pool if self.test or word not in HELD_OUT]

    def word(self, pool: list[str]) -> str:
        """A word as a value: in tests one that training never showed."""
        return self.rng.choice([word for word in pool if (word in HELD_OUT) == self.test])

    def number(self, digits: int) -> str:
        while True:
            number = self.rng.randrange(10 ** (digits - 1), 10**digits)
            if (number % 7 == 3) == self.test:
                return str(number)

    def date(self) -> str:
        while True:
            day, month = self.rng.randrange(1, 31), self.rng.randrange(12)
            if ((day + 3 * month) % 7 == 3) == self.test:
                return f"{day} {V.MONTHS[month]}"

    def code(self, digits: int) -> str:
        return self.rng.choice(V.LETTERS) + self.number(digits)

    def value(self, room: int, words: float = 0.15, dates: float = 0.08, codes: float = 0.08) -> str:
        """A value that takes at most ``room`` tiles (at least 3)."""
        dice = self.rng.random()
        if dice < words:
            return self.word(V.PLAIN)
        if dice < words + dates:
            return self.date()
        if dice < words + dates + codes:
            return self.code(min(3, room - 1))
        return self.number(self.rng.choice([n for n in (2, 3, 3, 3, 4, 4) if n <= room]))

    def pairs(self, firsts: list[str], seconds: list[str], count: int) -> list[str]:
        """Two-word labels that share words with one another, so that a label needs both words to be found."""
        size = max(4, int((count * 2.2) ** 0.5) + 1)
        first = self.rng.sample(self.words(firsts), min(size, len(self.words(firsts))))
        second = self.rng.sample(self.words(seconds), min(size, len(self.words(seconds))))
        every = [f"{a} {b}" for a in first for b in second if a != b]
        return self.rng.sample(every, min(count, len(every)))


class Grid:
    """Writes texts into the tiles of a page."""

    def __init__(self, page: Page):
        self.page = page

    def put(self, row: int, column: int, text: str, role: str = "body", align: str = "auto") -> list[int]:
        """Write a text from (row, column) to the right; returns its tile indices."""
        tokens = V.pieces(text)
        page = self.page
        if column + len(tokens) > page.columns or row >= page.rows:
            raise ValueError(f"{text!r} does not fit at row {row}, column {column}")
        tiles = []
        for k, token in enumerate(tokens):
            where = row * page.columns + column + k
            page.cells[where] = Tile(token, role, _align(k, len(tokens), align))
            tiles.append(where)
        return tiles

    def right(self, row: int, end: int, text: str, role: str = "body") -> list[int]:
        """Write a text so that it ends before column ``end``."""
        return self.put(row, end - len(V.pieces(text)), text, role)

    def centre(self, row: int, text: str, role: str = "head") -> list[int]:
        return self.put(row, (self.page.columns - len(V.pieces(text))) // 2, text, role)

    def mark(self, what: str, row: int, column: int, rows: int = 1, columns: int = 1) -> None:
        self.page.marks.append((what, row, column, rows, columns))


def _align(k: int, length: int, align: str) -> str:
    """Pull the pieces of one text together: the first to the right of its tile, the last to the left."""
    if align != "auto":
        return align
    if length == 1:
        return "l"
    return "r" if k == 0 else "l" if k == length - 1 else "c"


def add(
    page: Page,
    ask: str,
    rng: random.Random,
    label: str,
    value: str,
    label_tiles: list[int],
    value_tiles: list[int],
    split: str = "",
) -> None:
    page.fields.append(Field(label, value, label_tiles, value_tiles))
    text = rng.choice(_ASK[ask]).format(label)
    page.questions.append(Question(text, value, {"label": label_tiles, "value": value_tiles}, split))


def finish(page: Page, what: str, sentences: list[str], listed: list[str]) -> Page:
    """Caption, its paraphrases, and the description in reading order."""
    a, b, c = listed[:3]
    article, bare = what.split(" ", 1)
    page.caption = f"{what} with {a}, {b} and {c}."
    page.captions = [
        page.caption,
        f"This is {article.lower()} {bare} that lists {a}, {b} and {c}.",
        f"{what} showing {a}, {b} and {c}.",
        f"{a}, {b} and {c} are on {article.lower()} {bare}.",
        f"The image shows {article.lower()} {bare}; it has {a}, {b} and {c}.",
    ]
    body = " ".join(sentences)
    page.description = f"{what}. {body}"
    page.descriptions = [
        page.description,
        f"The image shows {article.lower()} {bare}. {body}",
        f"This is {article.lower()} {bare}. " + body.replace(" is ", " reads "),
    ]
    return page
