"""The two small interfaces that a method author implements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbench.methods.registry import USUAL_WINDOW, option

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.methods.observation import View


@dataclass(frozen=True)
class Score:
    """Which candidates matter: the highest scores of each head are kept."""

    name: ClassVar[str]
    line: ClassVar[str]
    source: ClassVar[str]
    default_window: ClassVar[int] = USUAL_WINDOW
    random: ClassVar[bool] = False  # True: draws, so that the run's seed= reaches it; needs an option `seed`
    uses_capacity: ClassVar[bool] = False  # True: the scores depend on how many entries a head may select
    extras: ClassVar[frozenset[str]] = frozenset()  # what prefill must capture besides keys, values, queries

    def __call__(self, view: View, selected: Tensor) -> Tensor:
        """[L, H, M] scores. `selected`: [L, H] entries that each head selects besides the window."""
        raise NotImplementedError


@dataclass(frozen=True)
class WindowScore(Score):
    """A score built on window attention, with the options for reducing and pooling it."""

    reduce: str = option(
        "mean", "reduce the query heads of a KV head by mean or max", choices=("mean", "max")
    )
    pool: str = option("avg", "pooling along positions", choices=("avg", "max", "none"))
    kernel: int = option(5, "pooling kernel", minimum=1, maximum=63, odd=True)


@dataclass(frozen=True)
class Capacity:
    """How many candidates each layer and KV head selects."""

    name: ClassVar[str]
    line: ClassVar[str]
    source: ClassVar[str]
    extras: ClassVar[frozenset[str]] = frozenset()
    # True: called with scores= as well, [L, H, M] of the method's score where each head selects B.
    needs_scores: ClassVar[bool] = False

    def __call__(self, view: View, selected: int) -> Tensor:
        """[L, H] int64 in [0, M]. `selected`: B, the budget per head without the window."""
        raise NotImplementedError


@dataclass(frozen=True)
class UnevenCapacity(Capacity):
    """A capacity whose heads select different numbers, and whose published form may miss the budget.

    Decision: with equal_entries the counts of a prompt are multiplied by one factor, capped at M and rounded
    by largest remainders, so that their mean over layers and heads is B; the papers compare at equal nominal
    budgets, whatever is held.
    """

    equal_entries: bool = option(
        False, "scale the counts of each prompt until their mean is the budget (published: unscaled)"
    )


def scaled_counts(counts: Tensor, total: int, most: int) -> Tensor:
    """Counts [L, H] times one factor, none above `most`, that sum to `total` <= numel * most.

    Rounded by largest remainders in whole numbers, ties to the lower layer and head. Heads that count
    nothing share alike what the others cannot hold.
    """
    import torch

    weights, found = counts.flatten().long(), torch.zeros(counts.numel(), dtype=torch.int64)
    free = torch.ones_like(found, dtype=torch.bool)
    while True:
        left = total - most * int((~free).sum())
        share = weights.where(free, 0)
        if int(share.sum()) == 0:
            share = free.long()
        whole = max(int(share.sum()), 1)
        full = free & (share * left >= most * whole)
        if not bool(full.any()):
            break
        free &= ~full
    found[~free] = most
    found[free] = (share * left // whole)[free]
    rest = torch.where(free, share * left % whole, -1).argsort(descending=True, stable=True)
    found[rest[: total - int(found.sum())]] += 1
    return found.view_as(counts)
