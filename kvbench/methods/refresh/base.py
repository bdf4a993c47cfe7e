"""What refresh policies share: the layout they rewrite, their validation, and the units of their costs.

Layout per KV head: [selected prefix | window | generated]. P = the prompt without the window, N_p
positions, whose keys and values stay available. A refresh rewrites the selected slots before the attention
of the same decode step. Shapes: B branches, H KV heads, G query heads per KV head, c selected entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbench.errors import UserError
from kvbench.methods.registry import option

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.engine.step import Step


@dataclass(frozen=True)
class Cost:
    """Costs per KV head, in vectors of head dimension d; `dots` per query head."""

    held: float = 0.0  # key equivalents that the policy holds on the device, besides the cache itself
    dots: float = 0.0  # dot products per step to score the prefix, in products of full dimension
    scanned: float = 0.0  # vectors read from the full prefix at every step
    fetched: float = 0.0  # further vectors read when a layer refreshes


@dataclass(frozen=True)
class Refresh:
    """Base of all policies."""

    name: ClassVar[str]
    line: ClassVar[str]
    source: ClassVar[str]
    extras: ClassVar[frozenset[str]] = frozenset()  # what prefill must capture
    triggered: ClassVar[bool] = (
        False  # True: a layer refreshes when its drift exceeds tau; False: at every step
    )
    per_branch: ClassVar[tuple[str, ...]] = ()  # options in which branches of one batched group may differ

    @property
    def speculates(self) -> bool:
        """True when the policy needs each layer's query guessed from the previous layer's input."""
        return False


@dataclass(frozen=True)
class Reselect(Refresh):
    """Base of the policies that rewrite the selected slots."""

    selected: int | None = option(
        None, "refreshed prefix entries per KV head; default: budget - window", minimum=1
    )
    group: str = option(
        "mean",
        "query heads of a KV head count by the mean or max of their attention, or the mean of their logits",
        choices=("mean", "max", "logits"),
    )
    offload: bool = option(
        False, "keep the full prefix in CPU memory and read only what a refresh asks for", runtime=True
    )

    def layout(self, window: int, budget: int) -> int:
        """Entries c that are selected at a budget; UserError when the layout does not fit."""
        selected = budget - window if self.selected is None else self.selected
        if selected + window > budget:
            raise UserError(
                f"refresh `{self.name}` holds {selected} selected and {window} window entries, more than "
                f"the budget {budget}: raise the budget to {selected + window} or lower refresh.selected."
            )
        if selected + window < budget:
            raise UserError(
                f"refresh `{self.name}` holds {selected} selected and {window} window entries, which leaves "
                f"{budget - selected - window} of the budget {budget} unused: set "
                f"refresh.selected={budget - window}."
            )
        self.check(selected)
        return selected

    def check(self, selected: int) -> None:
        """UserError when the options do not go with the selection size."""

    def check_model(self, head_dim: int) -> None:
        """UserError when the options do not go with the model's head dimension."""

    def check_rank(self, rank: int | None, head_dim: int) -> None:
        """UserError when a rank exceeds the head dimension."""
        if rank is not None and rank > head_dim:
            raise UserError(
                f"option `rank` of refresh `{self.name}` is {rank}, above the model's head "
                f"dimension {head_dim}: lower it."
            )

    def check_prompt(self, length: int, window: int) -> None:
        """UserError when a prompt has no prefix to select from."""
        if length < window:
            raise UserError(
                f"refresh `{self.name}` needs a prompt that fills its window of {window}, but this one has "
                f"{length} tokens: lower method.window or drop the refresh."
            )

    def cost(self, prefix: int, dim: int, selected: int) -> Cost:
        """Costs at a prefix of N_p entries and head dimension d."""
        raise NotImplementedError

    def propose(self, step: Step) -> Tensor:
        """[B, H, c] ascending positions of P that this step would select."""
        raise NotImplementedError


@dataclass(frozen=True)
class Triggered(Reselect):
    """Base of the policies that refresh a layer when its drift exceeds tau."""

    triggered: ClassVar[bool] = True
    per_branch: ClassVar[tuple[str, ...]] = ("tau", "rho", "eta")

    tau: float = option(
        0.03, "refresh a layer above this drift; rcr starts each sample with it", minimum=0, maximum=1
    )
    branching: bool = option(
        False, "decide on the host and skip untriggered layers; same tokens, for checking", runtime=True
    )

    def logits(self, step: Step) -> Tensor:
        """[B, H, G, N_p] what the drift is computed from."""
        raise NotImplementedError

    def drift(self, step: Step) -> Tensor:
        """[B] attention mass that this step would put on evicted prefix entries, mean over KV heads."""
        shares, _ = step.prefix_attention(lambda: self.logits(step))
        return step.evicted_mass(shares, self.group)
