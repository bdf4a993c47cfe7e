"""The six kinds of pages, one function each."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvbench.embedded import vocabulary as V
from kvbench.embedded.layout import Content, Grid, add, finish
from kvbench.embedded.page import Page, Tile


def _form(rng: random.Random, content: Content, dense: bool) -> Page:
    colon = rng.random() < 0.6
    room = rng.choice((3, 4)) if colon else 4
    width = 2 + colon + room
    columns = width * 2 if dense else rng.choice((10, 11, 12))
    lines = rng.randrange(16, 20) if dense else rng.randrange(18, 24)
    gaps = set(rng.sample(range(3, lines - 2), 2))
    page = Page("form", "", columns, lines + 4 + len(gaps))
    grid = Grid(page)
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
            add(page, "value", rng, label, value, names, values)
            sentences.append(f"{label} is {value}.")
        row += 1
    return finish(page, f"A form of {organisation}", sentences, [f.label for f in page.fields])


def _receipt(rng: random.Random, content: Content, dense: bool) -> Page:
    columns = rng.choice((8, 9, 10)) if dense else rng.choice((9, 10, 11))
    lines = rng.randrange(28, 34) if dense else rng.randrange(16, 21)
    page = Page("receipt", "", columns, lines + 8)
    grid = Grid(page)
    shop = f"{rng.choice(content.words(V.ADJECTIVES))} {rng.choice(content.words(V.PLACES))}"
    grid.centre(0, shop)
    date = content.date()
    names = grid.put(1, 1, "Date", "label")
    add(page, "value", rng, "Date", date, names, grid.right(1, columns - 1, date, "value"))
    grid.mark("dots", 1, 0, 1, columns)
    labels = content.pairs(V.ADJECTIVES, V.ITEMS, lines)
    row, sentences = 3, [f"Date is {date}."]
    end = columns - rng.choice((0, 1))
    for label in labels:
        value = content.number(rng.choice((2, 3, 3, 4)))
        names = grid.put(row, 0, label, "label")
        add(page, "price", rng, label, value, names, grid.right(row, end, value, "value"))
        sentences.append(f"{label} is {value}.")
        row += 1
    grid.mark("dots", row - 1, 0, 1, columns)
    row += 1
    for label in ("Total", "Cash", "Change"):
        value = content.number(rng.choice((3, 4)))
        names = grid.put(row, 0, label, "strong")
        add(page, "value", rng, label, value, names, grid.right(row, end, value, "strong"))
        sentences.append(f"{label} is {value}.")
        row += 1
    grid.centre(row, "Thank You", "body")
    page.rows = row + 1
    return finish(page, f"A receipt from {shop}", sentences, [f.label for f in page.fields[1:]])


def _table(rng: random.Random, content: Content, dense: bool) -> Page:
    names = content.words(V.NAMES)
    blocks = 2 if dense else 1
    lines = rng.randrange(15, 19) if dense else rng.randrange(14, 19)
    digits = rng.choice((3, 3, 4))
    gap = 1
    width = 4 + digits + gap
    columns = width * blocks if dense else rng.choice((10, 11))
    page = Page("table", "", columns, lines + (3 if dense else 8))
    grid = Grid(page)
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
            add(page, "date", rng, name, date, here, dates)
            add(page, "number", rng, name, number, here, numbers)
            sentences.append(f"{name} is {date} and {number}.")
        if ruled:
            grid.mark("rule", row, 0, 1, columns)
        row += step
    grid.mark("shade", 1, 0, 1, columns)
    return finish(page, f"A table of {title}", sentences, chosen)


def _notice(rng: random.Random, content: Content, dense: bool) -> Page:
    columns = rng.choice((8, 9))
    lines = rng.randrange(30, 38) if dense else rng.randrange(17, 22)
    page = Page("notice", "", columns, lines + 14)
    grid = Grid(page)
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
        add(page, form, rng, label, value, names, values)
        row += 1
        if line % gap_every == gap_every - 1:
            row += 1
    grid.centre(row, rng.choice(("Thank You", "Please keep the List")), "body")
    page.rows = row + 1
    return finish(page, f"A notice of {place}", sentences, [f.label for f in page.fields])


def _scene(rng: random.Random, content: Content, dense: bool) -> Page:
    width = rng.choice((6, 6, 7))
    columns = width * 2
    bands = rng.randrange(9, 11) if dense else rng.randrange(9, 11)
    page = Page("scene", "", columns, 2 * bands + 4)
    grid = Grid(page)
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
            add(page, "signword" if named else "sign", rng, label, value, names, values)
            sentences.append(f"{label} is {value}.")
        row += 2
    page.rows = row
    return finish(page, f"A view of {street}", sentences, [f.label for f in page.fields])


def _chart(rng: random.Random, content: Content, dense: bool) -> Page:
    columns = rng.choice((11, 12))
    grouped = rng.random() < 0.5
    bars = rng.randrange(18, 23) if dense else rng.randrange(16, 21)
    page = Page("chart", "", columns, bars + 8)
    grid = Grid(page)
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
            page.cells[row * columns + start + c] = Tile(V.BAR, f"bar{k % 3 if grouped else 0}")
        values = grid.put(row, start + size, value, "value")
        add(page, "bar", rng, label.replace(" ", " in "), value, names, values, split)
        sentences.append(f"{label} is {value}.")
        row += 1
        if grouped and k % 3 == 2 and k < bars - 1 and row < bars + 5:
            row += 1
    page.rows = max(row + 1, -(-240 // columns))
    grid.mark("axis", 2, start, page.rows - 3, columns - start)
    return finish(page, f"A chart of {topic}", sentences, labels)


MAKERS: dict[str, Callable[[random.Random, Content, bool], Page]] = {
    "form": _form,
    "receipt": _receipt,
    "table": _table,
    "notice": _notice,
    "scene": _scene,
    "chart": _chart,
}
