"""The compiled decode step: the model's one-token forward as one graph (`decode.compile=true`).

A graph is made for each set of shapes: the number of branches and the two widths of a static ragged cache
(kvbench.engine.ragged). On a GPU it is recorded as a CUDA graph, which knows tensors by their address, so the
cache's tensors stay where they are from one sample to the next.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvbench.engine.ragged import RaggedCache
from kvbench.errors import SetupError

SHAPES = 64  # sets of shapes that are compiled; one more is an error, never a step that is not compiled
BACKEND = "inductor"


class Arena:
    """Memory for caches that outlives them: one block a name, which grows and never moves otherwise."""

    def __init__(self) -> None:
        self._blocks: dict[str, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(block.nbytes for block in self._blocks.values())

    def clear(self) -> None:
        """Let go of everything."""
        self._blocks.clear()

    def zeros(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """The block of a name as zeros of this shape. What was handed out before under it is void."""
        count = torch.Size(shape).numel()
        held = self._blocks.get(name)
        if held is None or held.numel() < count or held.dtype != like.dtype or held.device != like.device:
            del held
            self._blocks.pop(name, None)  # before asking for more
            self._blocks[name] = like.new_empty(count)
        tensor = self._blocks[name][:count].view(shape).zero_()
        # Unguarded: should the block have moved, the CUDA graph is recorded again, not the step compiled.
        torch._dynamo.mark_static_address(tensor, guard=False)
        return tensor


class CompiledStep:
    """An adapter's decode step, compiled when first called with new shapes."""

    def __init__(self, adapter: Any):
        torch._dynamo.reset()  # the shapes of an earlier model would count as this one's
        self.arena = Arena()
        self.on_gpu = adapter.device.type == "cuda"
        mode = "reduce-overhead" if self.on_gpu and BACKEND == "inductor" else None
        self._forward = torch.compile(
            adapter.forward, fullgraph=True, dynamic=False, backend=BACKEND, mode=mode
        )

    def __call__(self, tokens: Tensor, position: int, cache: RaggedCache) -> Tensor:
        """As Adapter.step. The logits are void after the next call.

        Raises SetupError when the step cannot be compiled here.
        """
        positions = torch.full_like(tokens, position)
        if self.on_gpu:
            torch.compiler.cudagraph_mark_step_begin()
        try:
            with torch._dynamo.config.patch(recompile_limit=SHAPES, accumulated_recompile_limit=8 * SHAPES):
                return self._forward(tokens, positions, cache)
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise SetupError(
                f"the prompts came in more than {SHAPES} shapes, each compiled: set decode.compile=false."
            ) from error
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).strip().partition("\n\n")[0].split())[:300]
            raise SetupError(
                f"the decode step cannot be compiled here ({reason}): install a C++ compiler, "
                "or set decode.compile=false."
            ) from error
