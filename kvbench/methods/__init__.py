"""KV-cache eviction: capacity x score x window, and a refresh while decoding. Does not import torch."""

from __future__ import annotations

from kvbench.methods.base import Capacity, Score, WindowScore
from kvbench.methods.method import FULL, Method, build, canonical, check_budget, method_names, parse
from kvbench.methods.registry import (
    Option,
    capacity,
    describe,
    load_plugin,
    lookup,
    names,
    option,
    options,
    refresh,
    score,
)

__all__ = [
    "FULL",
    "Capacity",
    "Method",
    "Option",
    "Score",
    "WindowScore",
    "build",
    "canonical",
    "capacity",
    "check_budget",
    "describe",
    "load_plugin",
    "lookup",
    "method_names",
    "names",
    "option",
    "options",
    "parse",
    "refresh",
    "score",
    "select",
]


def __getattr__(name: str):
    if name == "select":  # needs torch: loaded on first use
        from kvbench.methods.select import select

        return select
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
