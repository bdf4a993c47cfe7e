"""LOOK-M: text tokens before visual tokens, each ordered by window attention."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.errors import UserError
from kvbench.methods.base import WindowScore
from kvbench.methods.registry import score


@score(
    "lookm", line="text tokens first, visual tokens by window attention", source="LOOK-M (arXiv:2406.18139)"
)
@dataclass(frozen=True)
class LookM(WindowScore):
    def __call__(self, view, selected):
        mask = view.observation.visual_mask
        if mask is None:
            raise UserError("lookm needs visual_mask: bool [N], True at image tokens.")
        text = ~mask[: view.candidates].bool().to(view.b.device)
        return view.b.double() + 2.0 * text  # b <= 1; double keeps the order of small scores under the offset
