"""InfiniGen: logits from the few rotated dimensions in which the prompt's queries are largest.

A = the right singular vectors of the prompt's queries (the G query heads of a KV head stacked), its columns
sorted by the summed |q A| over the prompt; prefill computes it. `query=previous_layer` guesses a layer's
query by running the layer's attention projections on the previous layer's attention input; the first layer
uses its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvbench.methods.refresh.base import Cost, Reselect
from kvbench.methods.registry import option, refresh


@refresh(
    "infinigen", line="top entries by partial rotated dimensions, every step", source="InfiniGen (OSDI 2024)"
)
@dataclass(frozen=True)
class InfiniGen(Reselect):
    extras: ClassVar[frozenset[str]] = frozenset({"query_basis"})

    rank: int | None = option(
        None, "rotated dimensions that are kept; default: a quarter of the head dimension", minimum=1
    )
    query: str = option("previous_layer", "speculated from the previous layer, or the current query",
                        choices=("previous_layer", "current"))  # fmt: skip

    @property
    def speculates(self):
        return self.query == "previous_layer"

    def check_model(self, head_dim):
        self.check_rank(self.rank, head_dim)

    def _rank(self, dim: int) -> int:
        return max(1, dim // 4) if self.rank is None else self.rank

    def cost(self, prefix, dim, selected):
        partial = prefix * self._rank(dim) / dim
        return Cost(held=partial, dots=partial, fetched=2 * selected)

    def _partial(self, step):
        """([L, H, d, r], [L, H, N_p, r]) the kept columns of A and the prefix keys in them."""
        import torch

        basis = step.prefix.query_basis[..., : self._rank(step.query.shape[-1])]
        keys = [step.prefix.keys_of(layer, step.count) for layer in range(step.prefix.layers)]
        return basis, torch.stack([(k.float() @ a).to(k.dtype) for k, a in zip(keys, basis, strict=True)])

    def propose(self, step):
        basis, keys = step.prefix.memo(("infinigen", self.rank, step.count), lambda: self._partial(step))
        if self.speculates:
            step = step.speculated()
        query = step.query @ basis[step.layer].unsqueeze(0).to(step.query.dtype)
        return step.top(step.shares(step.against(query, keys[step.layer]), self.group), step.selected)
