"""Pictures of data as a model should see them: whole or not at all, on white ground, in eight bits.

Task code turns them to RGB, which makes what is transparent black and cuts 16-bit grey off at 255; and
lmms-eval lets Pillow fill the rest of a picture that was cut off. The first two are mended before the task
sees the document, the third while it is decoded.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from PIL import Image, ImageFile

_decoding = threading.Lock()


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Inside, decoding raises OSError for a picture that was cut off, whatever lmms-eval set. Restores it."""
    with _decoding:
        before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = before


def shown(image: Image.Image) -> Image.Image:
    """The picture on white ground and in eight bits; as it is where nothing is transparent or deeper."""
    if image.mode.startswith("I;16"):
        return image.convert("I").point(lambda value: value / 257).convert("L")
    if "A" not in image.getbands() and "a" not in image.getbands() and "transparency" not in image.info:
        return image
    layered = image.convert("RGBA")
    if layered.getchannel("A").getextrema() == (255, 255):
        return image
    ground = Image.new("RGBA", layered.size, "white")
    ground.alpha_composite(layered)
    return ground.convert("RGB")


def _shown(value: Any) -> Any:
    """A column's value; some data sets hold pictures as the bytes of a file."""
    if isinstance(value, Image.Image):
        return shown(value)
    if isinstance(value, list):
        return [_shown(one) for one in value]
    if isinstance(value, bytes):
        with contextlib.suppress(OSError), Image.open(io.BytesIO(value)) as stored:
            if (better := shown(stored)) is not stored:
                out = io.BytesIO()
                better.save(out, "PNG")
                return out.getvalue()
    return value


def as_shown(doc_to_visual: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any]], Any]:
    """A task's doc_to_visual over documents whose pictures are as ``shown``."""
    return lambda doc: doc_to_visual({column: _shown(value) for column, value in doc.items()})
