"""Queries guessed one layer ahead, for policies that fetch before the layer runs (InfiniGen)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kvbench.engine.refresh import Group
from kvbench.errors import UserError


@contextmanager
def speculation(model, groups: list[Group], layers: int) -> Iterator[None]:
    """Inside the block every layer's query is also guessed from the previous layer's attention input.

    Works for any family: the layer's own attention module runs on that input, with a state that only looks.
    """
    groups = [g for g in groups if g.speculates]
    if not groups:
        yield
        return
    modules = [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "o_proj")]
    if len(modules) != layers:
        for group in groups:
            group.error = UserError(
                f"refresh `{group.policy.name}` cannot tell this model's attention layers: set "
                "refresh.query=current."
            )
        yield
        return
    previous: dict[str, Tensor] = {}

    def hook(module, args, kwargs):
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        guess = None
        if module.layer_idx > 0:
            probe = _Probe()
            inputs = {**kwargs, "kv_state": probe}
            if "hidden_states" in kwargs:
                module.forward(*args, **{**inputs, "hidden_states": previous["input"]})
            else:
                module.forward(previous["input"], *args[1:], **inputs)
            guess = probe.query
        previous["input"] = hidden
        for group in groups:
            if guess is None or not group.branches:
                group.guess = None
            else:
                part = guess[torch.tensor(group.branches, device=guess.device)]
                group.guess = part.reshape(len(part), group.prefix.heads, -1, part.shape[-1])

    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Probe:
    """An attention state that keeps the query and attends to nothing."""

    query: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.query = query
        return torch.zeros_like(query).transpose(1, 2)
