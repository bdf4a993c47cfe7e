"""What the values of a model's and a benchmark's keys must be, checked before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from kvbench.checks import check_whole
from kvbench.errors import UserError
from kvbench.support import masking

WHOLE, TEXT, TEXTS, FLAG = "whole", "text", "texts", "flag"


class Shape(NamedTuple):
    """The kind of a key's value; ``optional``: it may be null or absent, as code does without it."""

    kind: str
    optional: bool = True


SHAPES = {
    "model": {
        **dict.fromkeys(("name", "adapter"), Shape(TEXT, optional=False)),
        **dict.fromkeys(("id", "revision", "weights", "size", "architecture", "dtype"), Shape(TEXT)),
        **dict.fromkeys(
            ("attention", "system", "system_prompt", "head_scores", "title", "device", "chat"), Shape(TEXT)
        ),
        **dict.fromkeys(("max_length", "min_pixels", "max_pixels", "max_tiles", "window"), Shape(WHOLE)),
        **dict.fromkeys(("video_min_pixels", "video_max_pixels"), Shape(WHOLE)),
        "interleave": Shape(FLAG),
    },
    "benchmark": {
        **dict.fromkeys(("name", "kind", "metric"), Shape(TEXT, optional=False)),
        **dict.fromkeys(("task", "data", "subset", "config", "reference", "title"), Shape(TEXT)),
        **dict.fromkeys(("revision", "video_folder", "video_column", "videos"), Shape(TEXT)),
        "max_new_tokens": Shape(WHOLE, optional=False),
        **dict.fromkeys(("default_limit", "frames"), Shape(WHOLE)),
        "until": Shape(TEXTS, optional=False),
        **dict.fromkeys(("metrics", "needs", "columns"), Shape(TEXTS)),
    },
}


def check(group: str, config: Mapping[str, Any]) -> None:
    """Raise UserError, naming key and fix, where a ``model`` or ``benchmark`` lacks a key that it must have,
    or has a value of the wrong kind.
    """
    if not isinstance(config, Mapping) or not config:
        raise UserError(f"no {group} is chosen: set {group}=NAME, as `kvbench list` shows them.")
    for key in config:
        if masking.named(str(key)):
            # It would be a part of what names the cell, and so of every file about it.
            raise UserError(f"{group}.{key} looks like a secret: leave it out, and export it before the run.")
    missing = [key for key, shape in SHAPES[group].items() if not shape.optional and config.get(key) is None]
    if missing:
        name = config.get("name") or "NAME"
        raise UserError(
            f"{group} {name} has no {' and no '.join(missing)}: add {missing[0]}: VALUE to "
            f"conf/{group}/{name}.yaml."
        )
    for key, shape in SHAPES[group].items():
        value, name = config.get(key), f"{group}.{key}"
        if value is None:
            continue
        if shape.kind == WHOLE:
            check_whole(name, value, 1)
        elif shape.kind == FLAG and not isinstance(value, bool):
            raise UserError(f"{name} must be true or false, not {value!r}: set {name}=true.")
        elif shape.kind == TEXT and not isinstance(value, str):
            raise UserError(f"{name} must be text, not {value!r}: quote it twice, {name}=\"'VALUE'\".")
        elif shape.kind == TEXTS and not _texts(value):
            # A plain string would be read letter by letter.
            raise UserError(f'{name} must be a list of texts, not {value!r}: set \'{name}=["A","B"]\'.')


def check_device(model: Mapping[str, Any]) -> None:
    """Raise UserError for a device that no model is placed on."""
    device = model.get("device")
    if device is not None and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UserError(f"unknown device {device!r}: set model.device to auto, cpu, cuda or cuda:N.")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and text for text in value)
