"""Secrets stay out of what is stored and shown: stores and reports are passed on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MASK = "***"
# Names whose last word says that the value is a secret: WANDB_API_KEY, hub.token, but not max_new_tokens.
_NAME = r"(?:[\w.-]*[\W_])?(?:api_?key|key|token|password|passwd|secret|credentials?)"
_VALUE = r"""(?!VALUE\b)(?:"[^"]*"|'[^']*'|[^\s,;&\]})'"]+)"""
_NAMED = re.compile(rf"(?<![\w.-])({_NAME}['\"]?=|['\"]{_NAME}['\"]:\s*)({_VALUE})", re.IGNORECASE)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[opsu]_[A-Za-z0-9]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16})\b"
    r"|wandb_v1_\w{20,}|(?<!revision=)(?<![\w:@/-])[0-9a-f]{40}(?!\w)"  # W&B keys; revisions look alike
)
# Words that decide where a job runs and who hears of it, never an answer.
APART = ("launcher", "tracking", "hydra")
KEPT = ("hydra.searchpath",)


def mask(text: str) -> str:
    """The text with ``***`` for the values of keys named like secrets and for known shapes of tokens."""
    return _SHAPES.sub(MASK, _NAMED.sub(lambda found: found[1] + MASK, text))


def command(words: Sequence[str]) -> list[str]:
    """A command as it may be stored: without settings of launcher, tracking and Hydra, secrets masked."""
    return [mask(word) for word in words if not apart(word)]


def apart(word: str) -> bool:
    """Whether an override sets something that decides no answer."""
    key = word.lstrip("+~").partition("=")[0]
    return "=" in word and key not in KEPT and key.split(".")[0].split("/")[0] in APART and "." in key


def tree(value: Any, name: str = "") -> Any:
    """Nested plain values with secrets masked, each by its key and by its text."""
    if isinstance(value, dict):
        return {key: tree(one, str(key)) for key, one in value.items()}
    if isinstance(value, list):
        return [tree(one, name) for one in value]
    if not isinstance(value, str):
        return value
    return MASK if value and named(name) else mask(value)


def named(key: str) -> bool:
    """Whether a key says that its value is a secret."""
    return re.fullmatch(_NAME, key, re.IGNORECASE) is not None
