"""Plain pictures: written lines, bars, buttons. Sizes in pixels, colours RGB."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

INK, PAPER, ACCENT = (20, 20, 20), (250, 250, 245), (40, 90, 170)


def lines(texts: Sequence[str], size: tuple[int, int] = (336, 240), paper=PAPER, ink=INK) -> Image.Image:
    """Texts under one another, as on a page or a sign."""
    image = Image.new("RGB", size, paper)
    pen = ImageDraw.Draw(image)
    step = (size[1] - 16) // max(len(texts), 1)
    font = ImageFont.load_default(min(step * 0.6, 26))
    for row, text in enumerate(texts):
        pen.text((12, 8 + row * step), text, fill=ink, font=font)
    return image


def bars(values: Mapping[str, float], size: tuple[int, int] = (336, 240)) -> Image.Image:
    """A bar chart: names below the bars, values above them."""
    image = Image.new("RGB", size, PAPER)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(15)
    width, floor = size[0] // len(values), size[1] - 30
    for place, (name, value) in enumerate(values.items()):
        left, top = place * width + 12, floor - value / max(values.values()) * (floor - 30)
        pen.rectangle((left, top, left + width - 24, floor), fill=ACCENT)
        pen.text((left, top - 20), f"{value:g}", fill=INK, font=font)
        pen.text((left, floor + 6), name, fill=INK, font=font)
    return image


def screen(buttons: Mapping[str, tuple[float, float, float, float]], size=(360, 240)) -> Image.Image:
    """A screenshot: labelled boxes (left, top, right, bottom as shares of the screen)."""
    image = Image.new("RGB", size, (225, 228, 232))
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    for name, (left, top, right, bottom) in buttons.items():
        box = (left * size[0], top * size[1], right * size[0], bottom * size[1])
        pen.rectangle(box, fill=(255, 255, 255), outline=INK)
        pen.text((box[0] + 6, box[1] + 6), name, fill=INK, font=font)
    return image


def png(image: Image.Image) -> bytes:
    """The picture as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
