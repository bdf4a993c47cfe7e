"""Multiple choice and grounding: MMMU, HR-Bench, ScreenSpot."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from kvbench.benchmarks.micro.drawing import bars, lines, png, screen

Rows = tuple[str, list[dict[str, Any]]]
BUTTONS = {
    "Save": (0.05, 0.1, 0.35, 0.3),
    "Cancel": (0.55, 0.1, 0.85, 0.3),
    "Search": (0.05, 0.6, 0.35, 0.8),
    "Help": (0.55, 0.6, 0.85, 0.8),
}


def mmmu(_: Path) -> Rows:
    """Charts with four options, one with two pictures, one open question."""
    rows = []
    for row in range(6):
        values = {"A1": 10 + row, "B1": 30 + row, "C1": 20 + row}
        open_ended, two = row == 5, row == 4
        pictures: dict[str, Any] = {f"image_{number}": None for number in range(1, 8)}
        pictures["image_1"] = bars(values)
        if two or row == 0:  # the first row decides the columns' types
            pictures.update({f"image_{number}": lines([f"Figure {number}"]) for number in range(2, 8)})
        question = "<image 1> and <image 2>: which" if two else "<image 1> Which"
        rows.append(
            {
                "id": f"validation_{('Accounting', 'Physics', 'Music')[row % 3]}_{row + 1}",
                "question": "<image 1> What is the value of B1?"
                if open_ended
                else f"{question} bar is highest?",
                "options": "[]" if open_ended else "['A1', 'B1', 'C1', 'None of them']",
                "explanation": "",
                "topic_difficulty": "Easy",
                "question_type": "open" if open_ended else "multiple-choice",
                "answer": "35" if open_ended else "B",
                "subfield": "drawn",
                **pictures,
            }
        )
    return "validation", rows


def _hrbench(split: str, size: tuple[int, int]) -> Rows:
    words = ("EXIT", "TAXI", "OPEN", "CAFE")
    rows = []
    for row in range(8):
        right, shift = words[row % 4], row // 4
        options = dict(zip("ABCD", words[shift:] + words[:shift], strict=True))
        picture = base64.b64encode(png(lines([right], size=size))).decode("ascii")
        rows.append(
            {
                "index": row,
                "question": "What is the word on the sign?",
                "answer": next(letter for letter, word in options.items() if word == right),
                "category": ("single", "cross")[row % 2],
                **options,
                "cycle_category": str(shift),
                "image": picture,
            }
        )
    return split, rows


def hrbench_4k(_: Path) -> Rows:
    """A word on a wide sheet, far smaller than the 4K of the real pictures."""
    return _hrbench("hrbench_4k", (640, 480))


def hrbench_8k(_: Path) -> Rows:
    """The same, on a larger sheet."""
    return _hrbench("hrbench_8k", (1024, 768))


def screenspot(_: Path) -> Rows:
    """Buttons on screens of every platform; boxes as shares of the screen."""
    rows = []
    for row, source in enumerate(("ios", "android", "macos", "windows", "shop", "gitlab")):
        name = list(BUTTONS)[row % 4]
        rows.append(
            {
                "file_name": f"screen{row}.png",
                "bbox": list(BUTTONS[name]),
                "instruction": f"press {name}",
                "data_type": ("text", "icon")[row % 2],
                "data_source": source,
                "image": screen(BUTTONS),
            }
        )
    return "test", rows


SETS = {"mmmu": mmmu, "hrbench_4k": hrbench_4k, "hrbench_8k": hrbench_8k, "screenspot": screenspot}
