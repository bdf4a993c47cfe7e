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
PREFIX = "sha256:"


def by_content(config: dict[str, Any]) -> dict[str, Any]:
    """A copy of an identity config with a digest in place of every file's name.

    Raises UserError when a file cannot be read.
    """
    config = copy.deepcopy(config)
    for *outer, key in PATHS:
        node = _holder(config, outer)
        if isinstance(node.get(key), str) and node[key] != SHIPPED:
            node[key] = _digest(node[key], ".".join([*outer, key]))
    return config


def own_head_scores(model: dict[str, Any]) -> dict[str, Any]:
    """A model's config with its own file, NAME-heads.json or None, where head_scores is a folder."""
    given = model.get("head_scores")
    if given in (None, SHIPPED) or not Path(given).expanduser().is_dir():
        return model
    own = Path(given).expanduser() / f"{model['name']}-heads.json"
    return {**model, "head_scores": str(own) if own.is_file() else None}


def named(config: dict[str, Any]) -> bool:
    """Whether an identity config has the digest of a file, so that it alone cannot build model and method."""
    return any(str(_holder(config, outer).get(key)).startswith(PREFIX) for *outer, key in PATHS)


def _holder(config: dict[str, Any], outer: list[str]) -> dict[str, Any]:
    """The part of a config that has a key; empty where there is none."""
    node: Any = config
    for name in outer:
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def _digest(path: str, key: str) -> str:
    try:
        return PREFIX + sha256(Path(path).expanduser())
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): set {key} to a file that exists.") from error


def sha256(path: Path) -> str:
    """SHA-256 of a file as it lies there, read in blocks. Raises OSError."""
    with path.open("rb") as file:
        total = hashlib.sha256()
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def files(paths: list[str]) -> str:
    """Digest of what files hold, whatever they are called and wherever they lie."""
    total = hashlib.sha256()
    for path in map(Path, paths):
        try:
            total.update(sha256(path).encode())
        except OSError as error:
            raise UserError(f"cannot read {path} ({error.strerror}): copy it again.") from error
    return total.hexdigest()[:16]


def texts(root: Path) -> str:
    """Digest of a folder laid out as documents_mini's, read whole: index.json and the texts."""
    total = hashlib.sha256()
    for path in sorted([*root.glob("*.json"), *root.glob("texts/*.txt")]):
        total.update(path.name.encode("utf-8"))
        total.update(path.read_bytes())
    return total.hexdigest()[:10]
