"""Model adapters: one module per family, chosen by `adapter` in conf/model/*.yaml."""

from __future__ import annotations

import importlib
from typing import Any

from kvbench.errors import UserError

FAMILIES = ("embedded", "internvl", "llava_next", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "text")


def load(cfg: dict[str, Any]):
    """The adapter that a model config describes. Raises UserError if adapter or weights are missing."""
    name = cfg.get("adapter")
    if name not in FAMILIES:
        raise UserError(f"unknown model adapter `{name}`: set `adapter` to one of {', '.join(FAMILIES)}.")
    return importlib.import_module(f"kvbench.models.{name}").load(cfg)
