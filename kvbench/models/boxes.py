"""Where on a picture the cells of a grid lie."""

from __future__ import annotations

import math

Box = tuple[float, float, float, float]  # left, top, right, bottom


def covered(box: Box, frame: Box, rows: int, columns: int) -> list[tuple[int, int]]:
    """(row, column) of the cells of a grid laid over `frame` that a box touches, in reading order."""
    left, top, right, bottom = frame
    wide, high = (right - left) / columns, (bottom - top) / rows
    x = range(max(0, math.floor((box[0] - left) / wide)), min(columns, math.ceil((box[2] - left) / wide)))
    y = range(max(0, math.floor((box[1] - top) / high)), min(rows, math.ceil((box[3] - top) / high)))
    return [(row, column) for row in y for column in x]
