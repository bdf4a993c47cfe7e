"""Last query alone: BACON's q without calibration (its motivation study)."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.methods.base import WindowScore
from kvbench.methods.registry import score


@score("last_query", line="pooled attention of the last query", source="BACON section 4.2 (eq. 2)")
@dataclass(frozen=True)
class LastQuery(WindowScore):
    def __call__(self, view, selected):
        return view.last_query
