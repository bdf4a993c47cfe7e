"""Checks that every part shares, and the words they answer with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from kvbench.errors import UserError

DTYPES = ("bfloat16", "float16", "float32")


def suggest(name: str, choices: Iterable[str]) -> str:
    """The part of an error sentence that names the fix: the nearest names, or all when none is near."""
    names = sorted(set(choices))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if not near and "." not in name:
        near = [choice for choice in names if choice.rsplit(".", 1)[-1] == name][:3]
    if near:
        return "did you mean " + " or ".join(near) + "?"
    if len(names) > 24:
        names = [*names[:24], "..."]
    return "choose one of " + ", ".join(names) + "." if names else "there is none."


LARGEST = 2**63 - 1  # what journals, tables and random generators can hold


def check_whole(name: str, value: Any, least: int, hint: str = "", most: int = LARGEST) -> int:
    """``value`` as an int of ``least`` to ``most``; anything else is a UserError that says so."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        tail = f" {hint}" if hint else ""
        raise UserError(
            f"{name} must be a whole number of at least {least}, not {value!r}:{tail} set {name}=N."
        )
    if value > most:
        raise UserError(f"{name} must be a whole number of at most {most}, not {value}: set {name}=N.")
    return value


def check_budget(budget: Any, window: Any) -> None:
    """A budget counts the entries kept per KV head, the observation window included, so it is larger."""
    check_whole("budget", budget, 1, "it counts the entries kept per KV head, window included;")
    check_whole("method.window", window, 1)
    if budget <= window:
        raise UserError(
            f"budget {budget} must be larger than the window of {window}, which it includes: raise budget, "
            "or lower method.window."
        )
