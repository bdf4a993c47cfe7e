"""Pyramid capacity (PyramidKV): early layers select more, late layers fewer.

The published schedule rounds its step down, so it overspends (28 layers, B = 32: mean 36 instead of 32);
`exact_total` spends exactly L * B by rounding the cumulative schedule instead.

Decisions: the step is rounded down, as the published code does (`step=exact`: linear, each layer rounded, as
ECOKV's appendix A.1 writes it); prompts of any length get the schedule (`fallback=true`: uniform below
2 B tokens, as KVCache-Factory does).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.errors import UserError
from kvbench.methods.base import UnevenCapacity
from kvbench.methods.registry import capacity, option


def schedule(
    selected: int, layers: int, candidates: int, beta: int, exact_total: bool, step: str = "floored"
) -> list[int]:
    """Entries selected per layer, first layer first."""
    low = selected // beta
    high = 2 * selected - low
    if high >= candidates:
        high, low = candidates, 2 * selected - candidates
    if layers == 1:
        return [selected]
    if not exact_total:
        if step == "exact":  # rounded half up
            parts = (2 * (layers - 1) * high - 2 * layer * (high - low) for layer in range(layers))
            return [(part + layers - 1) // (2 * (layers - 1)) for part in parts]
        whole = (high - low) // (layers - 1)
        return [high - layer * whole for layer in range(layers)]
    # The first k layers of the linear schedule hold k * high - slope * k (k - 1) / 2 entries; round half up.
    totals = [
        (2 * k * high * (layers - 1) - (high - low) * k * (k - 1) + (layers - 1)) // (2 * (layers - 1))
        for k in range(layers + 1)
    ]
    return [min(after - before, candidates) for before, after in zip(totals, totals[1:], strict=False)]


@capacity("pyramid", line="linear decay over layers", source="PyramidKV (arXiv:2406.02069)")
@dataclass(frozen=True)
class Pyramid(UnevenCapacity):
    beta: int = option(20, "the last layer selects B // beta", minimum=1, maximum=1_000_000)
    exact_total: bool = option(False, "spend exactly L * B instead of the published, rounded-down schedule")
    step: str = option(
        "floored", "difference between layers: rounded down, or exact (A.1)", choices=("floored", "exact")
    )
    fallback: bool = option(False, "uniform for prompts of fewer than 2 B tokens (KVCache-Factory)")

    def __post_init__(self):
        if self.exact_total and self.step == "exact":
            raise UserError(
                "capacity `pyramid`: exact_total=true has its own rounding; leave step=exact out."
            )

    def __call__(self, view, selected):
        import torch

        layers, heads, _ = view.observation.shape
        if self.fallback and view.length < 2 * selected:
            per_layer = [min(selected, view.candidates)] * layers
        else:
            per_layer = schedule(selected, layers, view.candidates, self.beta, self.exact_total, self.step)
        return torch.tensor(per_layer, dtype=torch.int64).unsqueeze(1).expand(layers, heads).contiguous()
