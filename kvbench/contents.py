"""A cell's config by what its files hold: where they lie changes no answer, what they say does."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

from kvbench.errors import UserError

# Where an identity config may name a file that a method reads.
PATHS = (("model", "head_scores"), ("method", "capacity", "scores"), ("method", "score", "prior"))
SHIPPED = "shipped"  # part of the model's weights, whose digest the config holds anyway


def by_content(config: dict[str, Any]) -> dict[str, Any]:
    """A copy of an identity config with a digest in place of every file's name.

    Raises UserError when a file cannot be read.
    """
    config = copy.deepcopy(config)
    for *outer, key in PATHS:
        node: Any = config
        for name in outer:
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict) and isinstance(node.get(key), str) and node[key] != SHIPPED:
            node[key] = _digest(node[key], ".".join([*outer, key]))
    return config


def _digest(path: str, key: str) -> str:
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): set {key} to a file that exists.") from error
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
