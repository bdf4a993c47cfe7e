"""How often selection keeps the most recent positions when no window reserves them (ECOKV figure 5).

The paper names neither the window nor the score: the window is 1 here, so that every position but the last
has to compete, and three scores are told apart.
"""

from __future__ import annotations

from kvbench.errors import UserError
from kvbench.methods import build
from kvbench.methods.observation import Observation
from kvbench.methods.select import kept_mask
from kvbench.observations import BUDGET, LAST

METHODS = ("snapkv", "snapkv+mixkv", "snapkv+ecokv")


def recent(observation: Observation) -> dict[str, list[float]]:
    """By method: the share of (layer, KV head) pairs that keep each of the LAST positions, the last one last.

    Their sum over BUDGET is the share of the kept entries that are so recent. Raises UserError for a prompt
    that fits the budget: all of it is kept.
    """
    length = observation.shape[2]
    if length <= BUDGET:
        raise UserError(
            f"a prompt of {length} tokens fits the budget of {BUDGET}, so nothing is selected: "
            "observe a benchmark with longer prompts."
        )
    masks = {name: kept_mask(build({"name": name, "window": 1}, BUDGET), observation) for name in METHODS}
    return {name: mask[..., -LAST:].float().mean((0, 1)).tolist() for name, mask in masks.items()}
