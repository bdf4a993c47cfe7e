"""Pictures to calibrate visual heads on: drawn pages, or a folder of photographs with boxes.

ECOKV says that SparseMM finds its heads on OCRBench; SparseMM's published code reads SynthDoG with boxes.
OCRBench holds answers without the places of their words, which the rule needs, so it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from kvbench.calibration.heads import Reading
from kvbench.errors import UserError

READ_ALL = "Write all the text of this picture."
MOST_TOKENS = 1024  # of an answer about a picture of a folder, as in SparseMM's code


def box_readings(adapter, folder: Path, count: int) -> Iterable[Reading]:
    """The first ``count`` pictures of a folder, each to be read out in full.

    The folder holds one JSON file, as SparseMM's code keeps SynthDoG: a list of {"image_name": FILE,
    "2_coord": BOXES}, where a box is {"chunk": TEXT, "coord": [[left, top], [right, bottom]]} in pixels.
    Raises UserError when it does not, and when a picture is missing.
    """
    from PIL import Image

    _check_sight(adapter)
    for record in _records(folder)[:count]:
        try:
            name = record["image_name"]
            boxes = [
                (str(box["chunk"]), [float(x) for at in box["coord"] for x in at])
                for box in record["2_coord"]
            ]
            if any(len(box) != 4 for _, box in boxes):
                raise ValueError("a box has two corners")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"a record of {folder} is no picture with boxes ({error!r}): correct it."
            ) from error
        try:
            image = Image.open(folder / name).convert("RGB")
        except OSError as error:
            raise UserError(f"cannot read {folder / name} ({error}): put the picture there.") from error
        places = [(text, sorted(adapter.box_tokens(image.size, tuple(box)))) for text, box in boxes]
        yield Reading(image, READ_ALL, places, max_new_tokens=MOST_TOKENS)


def _records(folder: Path) -> list[dict]:
    """What the folder's JSON file lists."""
    files = sorted(folder.glob("*.json"))
    if not files and (found := sorted(folder.rglob("*.parquet"))):
        raise UserError(
            f"{found[0]} says nothing of where words stand, which finding visual heads needs (OCRBench has "
            "answers alone): give SynthDoG with boxes as SparseMM's code keeps it, or leave --data out for "
            "drawn pages."
        )
    if len(files) != 1:
        raise UserError(f"{folder} holds {len(files)} JSON files: name a folder with one list of pictures.")
    try:
        records = json.loads(files[0].read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {files[0]} ({error}): put a list of pictures there.") from error
    if not isinstance(records, list):
        raise UserError(f"{files[0]} is no list of pictures with boxes: see kvbench/calibration/readings.py.")
    return records


def _check_sight(adapter) -> None:
    if not hasattr(adapter, "box_tokens"):
        raise UserError(f"model {adapter.name} sees no pictures, so it has no visual heads to calibrate.")


def page_readings(adapter, count: int, seed: int = 0) -> Iterable[Reading]:
    """Training pages of the embedded generator, each to be read out in full by any model that sees.

    The boxes are words with the visual tokens that see them, by `adapter.box_tokens`: each word of a label,
    and each value. Raises UserError when the adapter cannot say where a box lies.
    """
    from kvbench.embedded import prompt
    from kvbench.embedded.draw import draw
    from kvbench.embedded.pages import KINDS, make

    _check_sight(adapter)
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        page = make(kind, f"calibrate-{seed}-{index}", test=False, dense=False)
        image = draw(page)
        words = [(f.value, f.value_tiles) for f in page.fields]
        for f in page.fields:
            label = f.label.split()
            if len(label) == len(f.label_tiles):  # one tile a word
                words += [(word, [tile]) for word, tile in zip(label, f.label_tiles, strict=True)]
        boxes = [(text, page_tokens(adapter, image.size, tiles, page.columns)) for text, tiles in words]
        yield Reading(image, prompt.TASKS["detailcaps"](""), boxes, max_new_tokens=96)


def page_tokens(adapter, size: tuple[int, int], tiles: Iterable[int], columns: int) -> list[int]:
    """Visual tokens that see any of a drawn page's tiles; size: its pixels, columns: its tiles across."""
    from kvbench.embedded.draw import TILE_HEIGHT, TILE_WIDTH

    found: set[int] = set()
    for tile in tiles:
        left, top = tile % columns * TILE_WIDTH, tile // columns * TILE_HEIGHT
        found.update(adapter.box_tokens(size, (left, top, left + TILE_WIDTH, top + TILE_HEIGHT)))
    return sorted(found)
