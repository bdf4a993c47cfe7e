"""What a prompt is made of: text, pictures and clips in the order in which the model reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbench.errors import Unanswerable

if TYPE_CHECKING:
    from PIL import Image

MARK = "<image>"  # in a prompt's text: here goes the next picture or clip


@dataclass(frozen=True)
class Video:
    """Frames already sampled from a video, in order and of one size: the model sees all of them."""

    frames: list[Image.Image]
    fps: float  # frames of this list per second of video


def parts(text: str, visuals: list[Any], interleave: bool) -> list[Any]:
    """Text and visuals (pictures, clips) in reading order.

    interleave: each MARK of the text gives way to the next visual. Otherwise the visuals go first, and MARK
    is text like any other: without interleaving no task writes it. Raises Unanswerable when there are not as
    many marks as visuals.
    """
    if not interleave:
        return [*visuals, text]
    pieces = text.split(MARK)
    if len(pieces) != len(visuals) + 1:
        raise Unanswerable(
            f"the prompt has {len(pieces) - 1} {MARK} marks for {len(visuals)} pictures: mark each of them "
            f"once, or set model.interleave=false to put all before the text."
        )
    mixed: list[Any] = [pieces[0]]
    for visual, piece in zip(visuals, pieces[1:], strict=True):
        mixed += [visual, piece]
    return [part for part in mixed if not isinstance(part, str) or part]
