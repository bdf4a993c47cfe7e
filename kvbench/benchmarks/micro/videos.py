"""Clips of sixteen frames, a square that crosses the picture, in an MP4 container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import ImageDraw

from kvbench.benchmarks.micro.drawing import lines

Rows = tuple[str, list[dict[str, Any]]]
COLOURS = {"red": (200, 30, 30), "green": (30, 150, 60), "blue": (40, 70, 200)}
FRAMES, RATE = 16, 4


def _write(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (128, 96)) -> None:
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for step in range(FRAMES):
            image = lines([], size=size)
            left = step * (size[0] - 24) // FRAMES
            ImageDraw.Draw(image).rectangle((left, 36, left + 24, 60), fill=colour)
            for packet in stream.encode(av.VideoFrame.from_image(image)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _clips(folder: Path) -> list[str]:
    for name, colour in COLOURS.items():
        _write(folder / "videos" / f"{name}.mp4", colour)
    return list(COLOURS)


def vatex(folder: Path) -> Rows:
    """Three captions a clip."""
    forms = ("A {} square moves to the right.", "The {} square crosses the page.", "a {} box slides along")
    return "test", [
        {"videoID": name, "enCap": [form.format(name) for form in forms], "chCap": ["一个方块"]}
        for name in _clips(folder)
    ]


def nextqa(folder: Path) -> Rows:
    """Open questions of two kinds."""
    rows = []
    for number, name in enumerate(_clips(folder) * 2):
        descriptive = number >= len(COLOURS)
        rows.append(
            {
                "video": name,
                "frame_count": FRAMES,
                "width": 128,
                "height": 96,
                "question": "what colour is the square" if descriptive else "what does the square do",
                "answer": name if descriptive else "move right",
                "qid": number,
                "type": "DO" if descriptive else "CH",
                "additional_ref_answer": "" if descriptive else "slide",
            }
        )
    return "test", rows


def videomme(folder: Path) -> Rows:
    """Questions with options on "short" and "long" clips."""
    rows = []
    for number, name in enumerate(_clips(folder) * 2):
        rows.append(
            {
                "video_id": f"{number:03d}",
                "duration": "short" if number == 0 else "long",
                "domain": "Knowledge",
                "sub_category": "Astronomy",
                "url": "",
                "videoID": name,
                "question_id": f"{number:03d}-1",
                "task_type": "Attribute Perception",
                "question": "What colour is the square?",
                "options": ["A. red.", "B. green.", "C. blue.", "D. black."],
                "answer": "ABC"[list(COLOURS).index(name)],
            }
        )
    return "test", rows


SETS = {"vatex": vatex, "nextqa": nextqa, "videomme": videomme}
