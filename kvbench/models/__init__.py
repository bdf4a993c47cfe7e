"""Model adapters: one module per family, chosen by `adapter` in conf/model/*.yaml."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from kvbench.errors import UserError


def load(cfg: dict[str, Any]):
    """The adapter that a model config describes. Raises UserError if adapter or weights are missing."""
    known = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base")
    name = cfg.get("adapter")
    if name not in known:
        raise UserError(f"unknown model adapter `{name}`: set `adapter` to one of {', '.join(known)}.")
    return importlib.import_module(f"kvbench.models.{name}").load(cfg)
