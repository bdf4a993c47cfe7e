"""Window attention (SnapKV): what the last prompt queries look at."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import WindowScore
from kvbench.methods.registry import score


@score("window", line="pooled attention of the last w queries", source="SnapKV (arXiv:2404.14469)")
@dataclass(frozen=True)
class Window(WindowScore):
    def __call__(self, view, selected):
        return view.b
