"""Decode time per token of refresh policies relative to one-shot selection, on random weights.

    kvbench bench refresh prefix=4096 layers=28

The decoder has the width of a 2B multimodal model. Layers share one set of weights, which is larger than
any CPU cache, so a step reads as much memory as with weights of their own. The prompt's keys and values are
random: prefill is not part of what is measured. Policies take turns step by step, so that noise of the
machine hits all alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from kvbench.bench import report
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser

POLICIES: tuple[dict[str, Any], ...] = (
    {"name": "none"},
    {"name": "rcr"},
    {"name": "quest"},
    {"name": "exact"},
)


def rows(
    prefix: int = 4096,
    layers: int = 28,
    *,
    steps: int = 8,
    hidden: int = 1536,
    intermediate: int = 8960,
    heads: int = 12,
    kv_heads: int = 2,
    window: int = 32,
    selected: int = 32,
    policies: tuple[dict[str, Any], ...] = POLICIES,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """One row per policy: median milliseconds per token, relative to the first policy, seconds of set-up.

    prefix: prompt entries besides the window. Set-up is what a policy prepares once per sample: it is
    timed in the first step, which is not part of the median.
    """
    import torch

    from kvbench.engine.cache import CompactCache
    from kvbench.engine.prefix import Prefixes
    from kvbench.engine.refresh import make_groups, plan_of
    from kvbench.methods import build

    torch.manual_seed(0)
    length, dim = prefix + window, hidden // heads
    adapter = _adapter(layers, hidden, intermediate, heads, kv_heads, length + steps + 1, device)
    prompt = _prompt(adapter, length)
    order = (
        torch.rand(layers, kv_heads, prefix, device=device)
        .topk(min(selected, prefix))
        .indices.sort(-1)
        .values
    )
    tail = torch.arange(prefix, length, device=device)
    kept = [[torch.cat([head, tail]) for head in layer] for layer in order]
    runs = []
    for policy in policies:
        method = build({"name": "snapkv+bacon", "window": window, "refresh": policy}, selected + window)
        plan = plan_of(method, length, dim, trace=False)
        groups = make_groups(Prefixes(prompt), [kept], [plan], [0], trace=False)
        runs.append((policy, CompactCache(prompt, [kept], steps + 1, groups), []))
    _time(adapter, runs, length, steps, device)
    medians = [statistics.median(seconds[1:]) for *_, seconds in runs]
    return [
        {
            "refresh": " ".join(str(v) for v in policy.values()),
            "prefix": prefix,
            "layers": layers,
            "ms_per_token": 1000 * median,
            "relative": median / medians[0],
            "setup_s": max(0.0, seconds[0] - median),
        }
        for (policy, _, seconds), median in zip(runs, medians, strict=True)
    ]


def _time(
    adapter: Any, runs: list[tuple[Any, Any, list[float]]], length: int, steps: int, device: str
) -> None:
    """Append the seconds of each step to those of each run, one step of every run after another."""
    import torch

    token = torch.zeros(1, dtype=torch.long, device=device)
    with torch.inference_mode():
        for step in range(steps + 1):
            for _, cache, seconds in runs:
                _wait(device)
                start = time.perf_counter()
                adapter.step(token, length + step, cache)
                cache.advance()
                _wait(device)
                seconds.append(time.perf_counter() - start)


def _adapter(
    layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, length: int, device: str
):
    """A random Llama decoder whose layers share their weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from kvbench.models.base import Adapter

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=length,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    first = LlamaForCausalLM(LlamaConfig(**{**config.to_dict(), "num_hidden_layers": 1})).to(device)
    shared = dict(first.model.layers[0].named_parameters())
    for layer in model.model.layers:
        for name, weight in shared.items():
            owner, _, leaf = name.rpartition(".")
            setattr(layer.get_submodule(owner), leaf, weight)
    model.model.embed_tokens, model.model.norm = first.model.embed_tokens, first.model.norm
    model.model.rotary_emb, model.lm_head = first.model.rotary_emb, first.lm_head
    return Adapter("random", model, None, stop_ids=())


def _prompt(adapter, length: int):
    """A prefill of random keys and values."""
    import torch

    from kvbench.engine.prefill import Prefill

    device = adapter.model.device
    shape = (adapter.layers, adapter.kv_heads, length, adapter.head_dim)
    basis = torch.eye(adapter.head_dim, device=device).expand(*shape[:2], -1, -1)
    return Prefill(
        key_stack=torch.randn(shape, device=device),
        value_stack=torch.randn(shape, device=device),
        window_queries=torch.zeros(adapter.layers, adapter.query_heads, 1, adapter.head_dim, device=device),
        logits=torch.zeros(1024, device=device),
        length=length,
        next_position=length,
        visual_mask=torch.zeros(length, dtype=torch.bool),
        query_basis=basis,
    )


def _wait(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows as a table and write them to runs/bench/refresh.json."""
    parser = Parser(prog="kvbench bench refresh", description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", type=int, nargs="+", default=[1024, 2048, 4096], help="prompt entries")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--steps", type=int, default=8, help="timed steps per policy")
    parser.add_argument("--device", default="cpu")
    given = parser.known(sys.argv[1:] if arguments is None else arguments)
    for name, values in (("prefix", given.prefix), ("layers", [given.layers]), ("steps", [given.steps])):
        if min(values) < 1:
            raise UserError(f"--{name} must be at least 1, not {min(values)}.")
    measured = []
    for prefix in given.prefix:
        measured += rows(prefix, given.layers, steps=given.steps, device=given.device)
    report.show(measured)
    print(f"wrote {report.save('refresh', measured, vars(given), given.device)}")


if __name__ == "__main__":
    main()
