"""Renders pages with PIL: fonts, inks, papers, rules, boxes, boards and bars; deterministic by the page's
seed.

A tile is ``TILE_WIDTH`` x ``TILE_HEIGHT`` pixels. Everything of a tile is drawn inside it, so tiles can be
read alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from kvbench.embedded import vocabulary as V
from kvbench.embedded.pages import Page, Tile

TILE_WIDTH, TILE_HEIGHT = 48, 24

#: (regular, bold) faces that matplotlib ships.
FACES = (
    ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"),
    ("DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf"),
    ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"),
    ("STIXGeneral.ttf", "STIXGeneralBol.ttf"),
    ("cmss10.ttf", "DejaVuSans-Bold.ttf"),
    ("cmr10.ttf", "cmb10.ttf"),
)
#: Faces whose letters are smaller at a given size.
_SMALL = {"STIXGeneral.ttf": 2, "STIXGeneralBol.ttf": 2, "cmss10.ttf": 2, "cmr10.ttf": 2, "cmb10.ttf": 2}

PAPERS = (
    (255, 255, 255),
    (252, 250, 244),
    (246, 246, 246),
    (255, 252, 238),
    (240, 246, 252),
    (250, 243, 236),
)
INKS = ((0, 0, 0), (25, 25, 40), (20, 30, 80), (60, 30, 20), (40, 40, 40))
WALLS = ((205, 214, 222), (222, 210, 196), (196, 206, 188), (214, 204, 214), (188, 200, 212))
BOARDS = (
    (24, 92, 64),
    (140, 28, 36),
    (26, 54, 112),
    (250, 214, 72),
    (245, 245, 240),
    (64, 44, 34),
    (236, 130, 46),
)
BARS = ((70, 110, 180), (210, 120, 60), (90, 160, 90), (150, 90, 160), (190, 70, 80), (80, 150, 160))


@dataclass(frozen=True)
class Style:
    """How one page is printed."""

    face: int
    size: int
    ink: tuple[int, int, int]
    paper: tuple[int, int, int]
    accent: tuple[int, int, int]
    shift: tuple[int, int]
    noise: float
    fade: float

    @staticmethod
    def pick(rng: random.Random, kind: str) -> Style:
        return Style(
            face=rng.randrange(len(FACES)),
            size=rng.randrange(11, 15),
            ink=rng.choice(INKS),
            paper=rng.choice(WALLS if kind == "scene" else PAPERS),
            accent=rng.choice(BARS),
            shift=(rng.randrange(-1, 2), rng.randrange(-2, 3)),
            noise=rng.choice((0.0, 6.0, 12.0, 20.0)),
            fade=rng.uniform(0.0, 0.12),
        )


@cache
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    import matplotlib  # its data folder holds the faces

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


@cache
def _fitting(name: str, size: int, text: str) -> tuple[ImageFont.FreeTypeFont, float]:
    """The largest font up to ``size`` in which the text fits into a tile, and the text's width in pixels."""
    size += _SMALL.get(name, 0)
    while True:
        font = _font(name, size)
        width = font.getlength(text)
        if width <= TILE_WIDTH - 3 or size <= 7:
            return font, width
        size -= 1


def contrast(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Black or white, whichever reads better on the colour."""
    return (250, 250, 250) if sum(colour) < 360 else (15, 15, 20)


def text_tile(
    pen: ImageDraw.ImageDraw, x: int, y: int, cell: Tile, style: Style, ink: tuple[int, int, int], bold: bool
) -> None:
    """Draw the text of one cell into the tile whose upper left corner is (x, y)."""
    text = V.shown(cell.token)
    font, width = _fitting(FACES[style.face][bold], style.size, text)
    room = TILE_WIDTH - width
    left = {"l": min(2 + style.shift[0], room), "r": room - 1, "c": room / 2 + style.shift[0]}[cell.align]
    pen.text((x + max(0, left), y + TILE_HEIGHT / 2 + style.shift[1]), text, font=font, fill=ink, anchor="lm")


def draw(page: Page) -> Image.Image:
    """The page as an RGB image of (columns * TILE_WIDTH) x (rows * TILE_HEIGHT) pixels."""
    rng = random.Random("draw-" + page.seed)
    style = Style.pick(rng, page.kind)
    width, height = page.columns * TILE_WIDTH, page.rows * TILE_HEIGHT
    image = Image.new("RGB", (width, height), style.paper)
    pen = ImageDraw.Draw(image)
    backs: dict[int, tuple[int, int, int]] = {}
    for what, row, column, rows, columns in page.marks:
        colour = rng.choice(BOARDS)
        _mark(pen, what, row, column, rows, columns, style, colour)
        if what in ("board", "banner"):
            for c in range(column, min(column + columns, page.columns)):
                backs[row * page.columns + c] = colour
    for where, cell in page.cells.items():
        row, column = divmod(where, page.columns)
        x, y = column * TILE_WIDTH, row * TILE_HEIGHT
        if cell.token == V.BAR:
            colour = BARS[(BARS.index(style.accent) + int(cell.role[3:])) % len(BARS)]
            pen.rectangle((x, y + 4, x + TILE_WIDTH - 1, y + TILE_HEIGHT - 5), fill=colour)
            continue
        ink = contrast(backs[where]) if where in backs else style.ink
        text_tile(pen, x, y, cell, style, ink, cell.role in ("head", "strong", "sign"))
    return _wear(image, style, rng)


def _mark(
    pen: ImageDraw.ImageDraw,
    what: str,
    row: int,
    column: int,
    rows: int,
    columns: int,
    style: Style,
    colour: tuple[int, int, int],
) -> None:
    """Everything on a page that is not text: it never crosses the middle of a tile with text."""
    x, y = column * TILE_WIDTH, row * TILE_HEIGHT
    right, bottom = x + columns * TILE_WIDTH - 1, y + rows * TILE_HEIGHT - 1
    grey = tuple((2 * p + i) // 3 for p, i in zip(style.paper, style.ink, strict=True))
    if what == "rule":
        pen.line((x, bottom, right, bottom), fill=grey)
    elif what == "dots":
        for dot in range(x, right, 6):
            pen.line((dot, bottom, dot + 2, bottom), fill=style.ink)
    elif what == "line":
        pen.line((x + 2, bottom - 1, right - 3, bottom - 1), fill=grey)
    elif what == "box":
        pen.rectangle((x, y + 1, right, bottom - 1), outline=grey)
    elif what == "comb":
        for c in range(columns):
            pen.rectangle((x + c * TILE_WIDTH, y + 1, x + (c + 1) * TILE_WIDTH - 1, bottom - 1), outline=grey)
    elif what == "shade":
        pen.rectangle((x, y, right, bottom), fill=tuple(max(0, p - 22) for p in style.paper))
    elif what in ("board", "banner"):
        pen.rectangle((x, y, right, bottom), fill=colour, outline=tuple(c * 2 // 3 for c in colour))
    elif what == "pole":
        for at in (x + TILE_WIDTH // 2, right - TILE_WIDTH // 2):
            pen.rectangle((at - 2, y, at + 2, bottom), fill=(92, 88, 84))
    elif what == "window":
        for c in range(columns):
            at = x + c * TILE_WIDTH
            pen.rectangle(
                (at + 5, y + 2, at + TILE_WIDTH - 6, bottom - 1),
                fill=(168, 190, 205),
                outline=(110, 110, 110),
            )
            pen.line((at + TILE_WIDTH // 2, y + 2, at + TILE_WIDTH // 2, bottom - 1), fill=(110, 110, 110))
    elif what == "axis":
        pen.line((x, y, x, bottom), fill=style.ink)
        pen.line((x, bottom, right, bottom), fill=style.ink)


def _wear(image: Image.Image, style: Style, rng: random.Random) -> Image.Image:
    """Fading across the page and grain."""
    pixels = np.asarray(image, dtype=np.float32)
    light = 1 - style.fade * np.linspace(0, 1, image.height, dtype=np.float32)[:, None, None]
    pixels = pixels * light
    if style.noise:
        grain = np.random.default_rng(rng.randrange(2**32))
        noise = grain.normal(0, style.noise, pixels.shape[:2]) * (grain.random(pixels.shape[:2]) < 0.06)
        pixels = pixels + noise.astype(np.float32)[:, :, None]  # sparse, so that PNG files stay small
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def drill(seed: int, columns: int = 16, rows: int = 16) -> Page:
    """A practice sheet for the tower: random tokens with every decoration, far denser than a real page."""
    rng = random.Random(f"drill-{seed}")
    kind = rng.choice(("form", "scene", "chart"))
    page = Page(kind, f"drill-{seed}", columns, rows)
    roles = ("body", "label", "strong", "sign")
    for where in range(columns * rows):
        dice = rng.random()
        if dice < 0.08:
            continue
        if dice < 0.10:
            page.cells[where] = Tile(V.BAR, f"bar{rng.randrange(3)}")
            continue
        token = rng.randrange(2, V.SIZE) if dice < 0.75 else rng.randrange(2, 20)
        page.cells[where] = Tile(token, rng.choice(roles), rng.choice("llrc"))
    for _ in range(columns * rows // 3):
        what = rng.choice(("rule", "dots", "line", "box", "comb", "board", "board", "board", "shade", "axis"))
        if what == "axis" and rng.random() < 0.7:
            continue
        row, column = rng.randrange(rows), rng.randrange(columns)
        page.marks.append((what, row, column, 1, min(rng.randrange(1, 5), columns - column)))
    for _ in range(columns * rows // 16):  # windows and poles stand where no text is
        row, column = rng.randrange(rows), rng.randrange(columns)
        page.cells.pop(row * columns + column, None)
        page.marks.append((rng.choice(("window", "pole")), row, column, 1, 1))
    return page
