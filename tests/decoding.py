"""What the tests of the decode paths share: a grid, a toy, prompts, and flash-attention's kernel."""

import pytest
import torch

from kvbench.engine import generate
from kvbench.engine.ragged import RaggedCache
from kvbench.methods import build
from kvbench.models import load, toy

# One head keeps many times what another does, and FullKV is not the first.
GRID = [("snapkv", 48, 16), ("fullkv", None, None), ("adakv+ecokv", 24, 4), ("pyramidkv", 40, 8)]
GRID += [("snapkv+bacon", 40, 8), ("adakv", 96, 32)]
NEW = 12
both = pytest.mark.parametrize("model", ["qwen2_vl", "llama"], indirect=True)


def methods(grid=GRID):
    return [build({"name": name, "window": window}, budget) for name, budget, window in grid]


def small(structure, layers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(toy.TEXT, "num_hidden_layers", layers)
        cfg = {"name": "toy", "weights": "random", "size": "toy", "device": "cpu", "seed": 3}
        return load({**cfg, **structure})


def prompt(adapter, seed=0, length=150):
    generator = torch.Generator().manual_seed(seed)
    return adapter.text_inputs(torch.randint(0, 256, (length,), generator=generator).tolist())


def tokens(adapter, inputs, grid=GRID, new=NEW, **settings):
    return [a.tokens for a in generate(adapter, inputs, methods(grid), max_new_tokens=new, **settings)]


class FakeKernel:
    """flash_attn_with_kvcache as its docstring describes it, for one query a sequence; strict about input."""

    def __init__(self):
        self.calls = 0

    def __call__(
        self, q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        assert k is v is rotary_cos is cache_batch_idx is cache_leftpad is block_table is alibi_slopes is None
        assert window_size == (-1, -1) and softcap == 0 and not return_softmax_lse
        batch, one, query_heads, dim = q.shape
        heads = k_cache.shape[2]
        assert one == 1 and k_cache.shape == v_cache.shape == (batch, k_cache.shape[1], heads, dim)
        assert q.dtype == k_cache.dtype == v_cache.dtype and query_heads % heads == 0
        assert all(t.stride(-1) == 1 for t in (q, k_cache, v_cache))
        assert cache_seqlens.shape == (batch,) and cache_seqlens.dtype == torch.int32
        assert cache_seqlens.is_contiguous()
        assert int(cache_seqlens.min()) >= 1 and int(cache_seqlens.max()) <= k_cache.shape[1]
        self.calls += 1
        out = torch.empty_like(q)
        for row in range(batch):  # row by row: no mask, so nothing of the product's own path
            end = int(cache_seqlens[row])
            keys = k_cache[row, :end].repeat_interleave(query_heads // heads, 1).transpose(0, 1)
            values = v_cache[row, :end].repeat_interleave(query_heads // heads, 1).transpose(0, 1)
            weights = (q[row].transpose(0, 1) @ keys.transpose(1, 2) * softmax_scale).softmax(-1)
            out[row] = (weights @ values).transpose(0, 1)
        return out


class FilledPrompt:
    """A prefill made up of random entries."""

    def __init__(self, layers, heads, length, dim):
        self.key_stack = torch.randn(layers, heads, length, dim)
        self.value_stack = torch.randn(layers, heads, length, dim)
        self.logits, self.length = torch.zeros(5), length


class FakeOutOfMemory(RuntimeError):
    """What torch calls its own."""


FakeOutOfMemory.__name__ = "OutOfMemoryError"


def contents(cache, branch: int, layer: int, head: int):
    """([entries, d], [entries, d]): keys and values that a branch holds, prompt first, then generated."""
    if isinstance(cache, RaggedCache):
        row = int(cache.places[branch]) * cache.heads + head
        for group in cache.groups:
            if row < group.count:
                end = int(group.lengths[layer, row]) + cache.tail
                return group.keys[layer][row, :end], group.values[layer][row, :end]
            row -= group.count
    else:
        for bucket in cache._buckets[layer]:
            for index in (bucket.rows == branch * cache.heads + head).nonzero().flatten().tolist():
                n, s = int(bucket.lengths[index]), bucket.slots
                held = (bucket.keys[index], bucket.values[index])
                return tuple(torch.cat([t[:n], t[s : s + cache.tail]]) for t in held)
    raise IndexError(f"no branch {branch}")
