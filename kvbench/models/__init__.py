"""Model adapters: one module per family, chosen by `adapter` in conf/model/*.yaml."""

from __future__ import annotations

import importlib
from typing import Any

from kvbench.errors import UserError

FAMILIES = ("auto", "embedded", "internvl", "llava_next", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "text")


def family(config: Any) -> Any:
    """The adapter class that reads checkpoints of this config's type; None where no family does."""
    for name in FAMILIES:
        module = importlib.import_module(f"kvbench.models.{name}")
        for found in vars(module).values():
            if isinstance(found, type) and config.model_type in getattr(found, "types", ()):
                return found
    return None


def load(cfg: dict[str, Any]):
    """The adapter that a model config describes. Raises UserError if adapter or weights are missing."""
    name = cfg.get("adapter")
    if name not in FAMILIES:
        raise UserError(f"unknown model adapter `{name}`: set `adapter` to one of {', '.join(FAMILIES)}.")
    return importlib.import_module(f"kvbench.models.{name}").load(cfg)
