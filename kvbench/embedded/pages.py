"""What stands on a page: content, questions, captions and descriptions, deterministic by seed.

A page is a grid of tiles. A tile shows one token of the page vocabulary or nothing. Every field of a page
knows the tiles of its label and of its value, so that an analysis can ask which cache entries an answer
needed.

Training and test pages differ in their seeds, in their values (numbers, dates, codes and words are split into
two disjoint sets) and in a fifth of the words, which training pages never show.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kvbench.embedded import vocabulary as V

DOCUMENTS = ("receipt", "form", "table", "notice")
KINDS = (*DOCUMENTS, "scene", "chart")
LEAST_TILES = 240

_LISTS = (V.ADJECTIVES, V.NOUNS, V.ITEMS, V.PLACES, V.NAMES, V.CITIES, V.ANIMALS)
#: Words that no training page shows: every fifth of each list.
HELD_OUT = frozenset(word for words in _LISTS for i, word in enumerate(words) if i % 5 == 2)


@dataclass
class Cell:
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
    cells: dict[int, Cell] = field(default_factory=dict)
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


class _Content:
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


class _Grid:
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
            page.cells[where] = Cell(token, role, _align(k, len(tokens), align))
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


def make(kind: str, seed: int, *, test: bool, dense: bool = True) -> Page:
    """A page by kind and seed.

    Args:
        kind: one of ``KINDS``.
        seed: any integer; test and training pages of one seed have nothing to do with each other.
        test: draw from the test values and all words, else from the training values and words.
        dense: as many fields as fit (for questions), else about twenty in one column (for descriptions).
    """
    name = f"{'test' if test else 'train'}-{kind}-{'dense' if dense else 'light'}-{seed}"
    rng = random.Random(name)
    page = _MAKERS[kind](rng, _Content(rng, test), dense)
    page.rows = max(
        page.rows, -(-LEAST_TILES // page.columns)
    )  # blank foot, so that prompts have 250 tokens or more
    page.seed = name
    return page


def _add(
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


def _finish(page: Page, what: str, sentences: list[str], listed: list[str]) -> Page:
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


def _form(rng: random.Random, content: _Content, dense: bool) -> Page:
    colon = rng.random() < 0.6
    room = rng.choice((3, 4)) if colon else 4
    width = 2 + colon + room
    columns = width * 2 if dense else rng.choice((10, 11, 12))
    lines = rng.randrange(16, 20) if dense else rng.randrange(18, 24)
    gaps = set(rng.sample(range(3, lines - 2), 2))
    page = Page("form", "", columns, lines + 4 + len(gaps))
    grid = _Grid(page)
    organisation = f"{rng.choice(content.words(V.ADJECTIVES))} {rng.choice(content.words(V.PLACES))}"
    title = rng.choice(("Form", "Record", "Survey", "Plan"))
    grid.centre(0, f"{organisation} {title}")
    grid.mark("rule", 0, 0, 1, columns)
    labels = content.pairs(V.ADJECTIVES, V.NOUNS, lines * (2 if dense else 1))
    row, sentences = 2, []
    boxes = rng.choice(("comb", "box", "line", "none"))
    for line in range(lines):
        if line in gaps:
            grid.mark("rule", row, 0, 1, columns)
            row += 1
        for side in range(2 if dense else 1):
            if not labels:
                break
            label, value = labels.pop(), content.value(room)
            at = side * width
            names = grid.put(row, at, label, "label")
            if colon:
                grid.put(row, at + 2, ":", "label")
            values = grid.put(row, at + 2 + colon, value, "value", "c" if boxes == "comb" else "auto")
            if boxes != "none":
                grid.mark(boxes, row, at + 2 + colon, 1, room if boxes != "comb" else len(values))
            _add(page, "value", rng, label, value, names, values)
            sentences.append(f"{label} is {value}.")
        row += 1
    return _finish(page, f"A form of {organisation}", sentences, [f.label for f in page.fields])


def _receipt(rng: random.Random, content: _Content, dense: bool) -> Page:
    columns = rng.choice((8, 9, 10)) if dense else rng.choice((9, 10, 11))
    lines = rng.randrange(28, 34) if dense else rng.randrange(16, 21)
    page = Page("receipt", "", columns, lines + 8)
    grid = _Grid(page)
    shop = f"{rng.choice(content.words(V.ADJECTIVES))} {rng.choice(content.words(V.PLACES))}"
    grid.centre(0, shop)
    date = content.date()
    names = grid.put(1, 1, "Date", "label")
    _add(page, "value", rng, "Date", date, names, grid.right(1, columns - 1, date, "value"))
    grid.mark("dots", 1, 0, 1, columns)
    labels = content.pairs(V.ADJECTIVES, V.ITEMS, lines)
    row, sentences = 3, [f"Date is {date}."]
    end = columns - rng.choice((0, 1))
    for label in labels:
        value = content.number(rng.choice((2, 3, 3, 4)))
        names = grid.put(row, 0, label, "label")
        _add(page, "price", rng, label, value, names, grid.right(row, end, value, "value"))
        sentences.append(f"{label} is {value}.")
        row += 1
    grid.mark("dots", row - 1, 0, 1, columns)
    row += 1
    for label in ("Total", "Cash", "Change"):
        value = content.number(rng.choice((3, 4)))
        names = grid.put(row, 0, label, "strong")
        _add(page, "value", rng, label, value, names, grid.right(row, end, value, "strong"))
        sentences.append(f"{label} is {value}.")
        row += 1
    grid.centre(row, "Thank You", "body")
    page.rows = row + 1
    return _finish(page, f"A receipt from {shop}", sentences, [f.label for f in page.fields[1:]])


def _table(rng: random.Random, content: _Content, dense: bool) -> Page:
    names = content.words(V.NAMES)
    blocks = 2 if dense else 1
    lines = rng.randrange(15, 19) if dense else rng.randrange(14, 19)
    digits = rng.choice((3, 3, 4))
    gap = 1
    width = 4 + digits + gap
    columns = width * blocks if dense else rng.choice((10, 11))
    page = Page("table", "", columns, lines + (3 if dense else 8))
    grid = _Grid(page)
    title = f"{rng.choice(content.words(V.ADJECTIVES))} {rng.choice(content.words(V.PLACES))}"
    grid.centre(0, f"{title} List")
    chosen = rng.sample(names, lines * blocks)
    row, sentences = 2, []
    step = 1 if dense else rng.choice((1, 1, 2)) if lines < 16 else 1
    page.rows = 3 + lines * step + (0 if dense or step == 2 else max(0, 250 // columns - lines - 4))
    for block in range(blocks):
        at = block * width
        for head, shift in (("Name", 0), ("Date", 2), ("Number", 4)):
            grid.put(1, at + shift, head, "strong")
    ruled = rng.random() < 0.6
    for line in range(lines):
        for block in range(blocks):
            name, at = chosen[line * blocks + block], block * width
            date, number = content.date(), content.number(digits)
            here = grid.put(row, at, name, "label")
            dates = grid.right(row, at + 4, date, "value")
            numbers = grid.put(row, at + 4, number, "value")
            _add(page, "date", rng, name, date, here, dates)
            _add(page, "number", rng, name, number, here, numbers)
            sentences.append(f"{name} is {date} and {number}.")
        if ruled:
            grid.mark("rule", row, 0, 1, columns)
        row += step
    grid.mark("shade", 1, 0, 1, columns)
    return _finish(page, f"A table of {title}", sentences, chosen)


def _notice(rng: random.Random, content: _Content, dense: bool) -> Page:
    columns = rng.choice((8, 9))
    lines = rng.randrange(30, 38) if dense else rng.randrange(17, 22)
    page = Page("notice", "", columns, lines + 14)
    grid = _Grid(page)
    place = f"{rng.choice(content.words(V.ADJECTIVES))} {rng.choice(content.words(V.PLACES))}"
    grid.centre(0, f"Notice : {place}")
    grid.mark("rule", 0, 0, 1, columns)
    row, sentences = 2, []
    people = rng.sample(content.words(V.NAMES), lines)
    houses = content.pairs(V.ADJECTIVES, V.PLACES, lines)
    things = content.pairs(V.ADJECTIVES, V.NOUNS, lines)
    gap_every = rng.choice((6, 8, 10)) if dense else rng.choice((2, 3))
    for line in range(lines):
        form = rng.choice(("room", "room", "opens", "value", "value", "with"))
        if form == "room":
            label, value = people.pop(), content.number(3)
            names = grid.put(row, 0, label, "label")
            grid.put(row, 1, "is in Room")
            values = grid.put(row, 4, value, "value")
            sentences.append(f"{label} is in Room {value}.")
        elif form == "opens":
            label, value = houses.pop(), content.date()
            names = grid.put(row, 0, label, "label")
            grid.put(row, 2, "opens on", align="l")
            values = grid.put(row, 4, value, "value")
            sentences.append(f"{label} opens on {value}.")
        elif form == "with":
            label, value = things.pop(), content.word(V.PEOPLE)
            names = grid.put(row, 0, label, "label")
            grid.put(row, 2, "is with", align="l")
            values = grid.put(row, 4, value, "value")
            sentences.append(f"{label} is with {value}.")
        else:
            label, value = things.pop(), content.value(4, words=0.0)
            names = grid.put(row, 0, label, "label")
            grid.put(row, 2, "is", align="l")
            values = grid.put(row, 3, value, "value")
            sentences.append(f"{label} is {value}.")
        grid.put(row, values[-1] % columns + 1, ".")
        _add(page, form, rng, label, value, names, values)
        row += 1
        if line % gap_every == gap_every - 1:
            row += 1
    grid.centre(row, rng.choice(("Thank You", "Please keep the List")), "body")
    page.rows = row + 1
    return _finish(page, f"A notice of {place}", sentences, [f.label for f in page.fields])


def _scene(rng: random.Random, content: _Content, dense: bool) -> Page:
    width = rng.choice((6, 6, 7))
    columns = width * 2
    bands = rng.randrange(9, 11) if dense else rng.randrange(9, 11)
    page = Page("scene", "", columns, 2 * bands + 4)
    grid = _Grid(page)
    street = f"{rng.choice(content.words(V.CITIES))} {rng.choice(('Street', 'Road', 'Avenue'))}"
    grid.centre(0, street, "head")
    grid.mark("banner", 0, (columns - 2) // 2 - 1, 1, 4)
    labels = content.pairs(V.ADJECTIVES, V.PLACES, bands * 2)
    row, sentences = 2, []
    for _ in range(bands):
        for side in range(2):
            if not labels or (rng.random() < 0.08 and len(page.fields) > 3):
                continue
            label = labels.pop()
            named = rng.random() < 0.25
            value = content.word(V.PLAIN) if named else content.number(rng.choice((2, 3, 3, 4)))
            size = 2 + len(V.pieces(value))
            at = side * width + rng.randrange(0, width - size + 1)
            names = grid.put(row, at, label, "sign")
            values = grid.put(row, at + 2, value, "sign")
            grid.mark("board", row, at, 1, size)
            grid.mark(rng.choice(("pole", "window", "window", "none")), row + 1, at, 1, size)
            _add(page, "signword" if named else "sign", rng, label, value, names, values)
            sentences.append(f"{label} is {value}.")
        row += 2
    page.rows = row
    return _finish(page, f"A view of {street}", sentences, [f.label for f in page.fields])


def _chart(rng: random.Random, content: _Content, dense: bool) -> Page:
    columns = rng.choice((11, 12))
    grouped = rng.random() < 0.5
    bars = rng.randrange(18, 23) if dense else rng.randrange(16, 21)
    page = Page("chart", "", columns, bars + 8)
    grid = _Grid(page)
    topic = (
        f"{rng.choice(content.words(V.ADJECTIVES))} {rng.choice(('Sales', 'Orders', 'Results', 'Points'))}"
    )
    grid.centre(0, f"{topic} Chart")
    if grouped:
        places = rng.sample(content.words(V.CITIES), (bars + 2) // 3)
        months = rng.sample(V.MONTHS, 4)[:3]
        labels = [f"{place} {month}" for place in places for month in months][:bars]
    else:
        labels = rng.sample(content.words(rng.choice((V.CITIES, V.NAMES, V.ITEMS))), bars)
    digits = rng.choice((2, 3, 3))
    start = 2 if grouped else 1
    longest = columns - start - digits
    row, sentences, split = 2, [], "human_test" if grouped else "augmented_test"
    for k, label in enumerate(labels):
        value = content.number(digits)
        size = max(1, round(int(value) / 10**digits * longest))
        names = grid.put(row, 0, label, "label")
        for c in range(size):
            page.cells[row * columns + start + c] = Cell(V.BAR, f"bar{k % 3 if grouped else 0}")
        values = grid.put(row, start + size, value, "value")
        _add(page, "bar", rng, label.replace(" ", " in "), value, names, values, split)
        sentences.append(f"{label} is {value}.")
        row += 1
        if grouped and k % 3 == 2 and k < bars - 1 and row < bars + 5:
            row += 1
    page.rows = max(row + 1, -(-240 // columns))
    grid.mark("axis", 2, start, page.rows - 3, columns - start)
    return _finish(page, f"A chart of {topic}", sentences, labels)


_MAKERS: dict[str, Callable[[random.Random, _Content, bool], Page]] = {
    "form": _form,
    "receipt": _receipt,
    "table": _table,
    "notice": _notice,
    "scene": _scene,
    "chart": _chart,
}
