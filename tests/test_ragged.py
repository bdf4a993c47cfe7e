"""The ragged cache: other storage and steps of equal shape, the same tokens."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from decoding import (
    GRID,
    NEW,
    FakeKernel,
    FakeOutOfMemory,
    FilledPrompt,
    both,
    contents,
    methods,
    prompt,
    tokens,
)

from kvbench.engine import flash, generate, prefill, ragged
from kvbench.engine.generate import observe
from kvbench.engine.paths import Compact, Ragged, choose
from kvbench.engine.ragged import RaggedCache, ragged_bytes, width_for
from kvbench.identity import provenance
from kvbench.methods import build
from kvbench.methods.select import kept_mask, to_sets

pytest_plugins = ("decoding_fixtures",)
decoding_engine = import_module("kvbench.engine.decode")


@both
def test_tokens_are_those_of_the_compact_cache_and_of_branches_alone(model, endings, caches):
    inputs = prompt(model)
    expected = tokens(model, inputs, cache="compact")
    assert not caches
    assert tokens(model, inputs, cache="ragged") == expected
    assert caches and caches[0][0].branches < len(GRID)  # finished branches have left the batch
    assert [tokens(model, inputs, [cell], cache="ragged")[0] for cell in GRID] == expected


def test_the_kernel_is_given_every_row_as_a_sequence_of_its_own(model, endings, kernel, caches):
    inputs = prompt(model)
    expected = tokens(model, inputs, cache="compact")
    assert tokens(model, inputs) == expected  # ragged by itself, as the kernel is there
    assert kernel.calls and len(caches) == 1
    assert tokens(model, inputs, [("snapkv", 48, 16)])[0] == expected[0]


def test_half_precision_reaches_the_kernel_as_it_is(model, kernel, monkeypatch):
    monkeypatch.setattr(model, "model", model.model.to(torch.bfloat16))
    try:
        assert len(tokens(model, prompt(model), new=4)) == len(GRID)
        assert kernel.calls == 3 * model.layers * 2  # steps, layers, FullKV and the others
    finally:
        model.model.float()


def test_the_kernel_needs_its_package_and_its_device():
    cpu = torch.device("cpu")
    assert flash.kernel() is None and not flash.usable(cpu, torch.bfloat16, 64)


@pytest.mark.parametrize(
    ("capability", "dtype", "dim", "there"),
    [
        ((8, 0), torch.bfloat16, 64, True),
        ((9, 0), torch.float16, flash.HEAD_DIM, True),
        ((7, 5), torch.float16, 64, False),
        ((8, 0), torch.float32, 64, False),
        ((8, 0), torch.float16, flash.HEAD_DIM + 8, False),
        ((8, 0), torch.float16, 60, False),
    ],
)
def test_the_kernel_runs_from_ampere_on_in_16_bit(monkeypatch, capability, dtype, dim, there):
    """As flash-attention 2 says of itself: capability 8.0, fp16 and bf16, head dimensions up to 256."""
    monkeypatch.setattr(flash, "kernel", FakeKernel)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert flash.usable(torch.device("cuda"), dtype, dim) == there


def test_an_installed_kernel_is_one_of_the_circumstances(monkeypatch):
    assert "flash_attn" not in provenance.versions()
    release = provenance._version
    monkeypatch.setattr(provenance, "_version", lambda name: "2.8" if name == "flash_attn" else release(name))
    assert provenance.versions()["flash_attn"] == "2.8"


@pytest.mark.parametrize("dtype,dim,able", [
    (torch.bfloat16, 128, True), (torch.float16, 64, True), (torch.float32, 128, False),
    (torch.bfloat16, 264, False), (torch.bfloat16, 20, False), (torch.bfloat16, 256, True),
])  # fmt: skip
def test_the_kernel_takes_half_precision_and_heads_of_its_sizes(monkeypatch, dtype, dim, able):
    monkeypatch.setattr(flash, "kernel", FakeKernel)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert flash.usable(torch.device("cuda"), dtype, dim) is able
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not flash.usable(torch.device("cuda"), dtype, dim)


@pytest.mark.parametrize("static", [False, True])
def test_a_cache_holds_exactly_the_promised_entries_and_never_changes_shape(model, static):
    inputs = prompt(model)
    with torch.inference_mode():
        filled = prefill(model, inputs, window=32)
        masks = [kept_mask(m, observe(filled)) for m in methods()]
        kept = [None if m.full else to_sets(mask) for m, mask in zip(methods(), masks, strict=True)]
        cache = RaggedCache(filled, kept, 4, static)
        assert cache.nbytes == sum(ragged_bytes(filled, kept, 4, static))
        shapes = [tuple(keys.shape) for group in cache.groups for keys in group.keys]
        pointers = [keys.data_ptr() for group in cache.groups for keys in group.keys]
        for step in range(4):
            model.step(torch.full((len(kept),), 7), inputs.next_position + step, cache)
            cache.advance()
        assert shapes == [tuple(keys.shape) for group in cache.groups for keys in group.keys]
        assert pointers == [keys.data_ptr() for group in cache.groups for keys in group.keys]
        alive = [0, 1, 2, 3, 4, 5]
        for stay in ([0, 1, 3, 5], [1, 2, 3], [1]):  # the last but one leaves FullKV out
            cache.retain(stay)
            alive = [alive[i] for i in stay]
            assert cache.branches == len(alive) and (static or cache.size == len(alive))
            for number, branch in enumerate(alive):
                for layer in range(model.layers):
                    for head in range(model.kv_heads):
                        keys, values = contents(cache, number, layer, head)
                        promised = masks[branch][layer, head]
                        assert len(keys) == len(values) == int(promised.sum()) + 4
                        assert torch.equal(keys[:-4], filled.keys[layer][head][promised])
                        assert torch.equal(values[:-4], filled.values[layer][head][promised])
        if static:
            assert shapes == [tuple(keys.shape) for group in cache.groups for keys in group.keys]
        else:
            assert cache.nbytes == ragged_bytes(filled, [kept[3], kept[5]], 4, False)[0]


def test_one_token_is_written_behind_each_rows_own_last():
    torch.manual_seed(0)
    lengths, heads, dim = (3, 7), 1, 4
    filled = FilledPrompt(layers=1, heads=heads, length=9, dim=dim)
    kept = [[[torch.arange(n)]] for n in lengths]
    cache = RaggedCache(filled, kept, 2)
    query, key, value = torch.randn(2, 3, 1, dim), torch.randn(2, 1, 1, dim), torch.randn(2, 1, 1, dim)
    out = cache.attend(0, query, key, value, 0.5)
    for branch, n in enumerate(lengths):
        stored = cache.groups[0].keys[0][branch]
        assert torch.equal(stored[n], key[branch, 0, 0]) and not stored[n + 1 :].any()
        keys = torch.cat([filled.key_stack[0, 0, :n], key[branch, 0]])
        values = torch.cat([filled.value_stack[0, 0, :n], value[branch, 0]])
        expected = (query[branch, :, 0] @ keys.T * 0.5).softmax(-1) @ values
        torch.testing.assert_close(out[branch, 0], expected)


def test_late_looks_write_no_entry_beyond_the_answer(model, monkeypatch):
    """Rows exactly as wide as prompt and answer need: one token more would have no place."""
    new = 11
    inputs = prompt(model, length=16 * ragged.ALIGN - (new - 1))
    grid = [("fullkv", None, None), ("snapkv", 4 * ragged.ALIGN - (new - 1), 16)]
    expected = tokens(model, inputs, grid, new, cache="compact")
    monkeypatch.setattr(decoding_engine, "CPU_INTERVAL", 4)
    assert tokens(model, inputs, grid, new, cache="ragged") == expected


def test_widths_hold_what_they_must_and_few_are_static():
    for entries in range(1, 600):
        loose, static = width_for(entries, False), width_for(entries, True)
        assert entries <= loose < entries + ragged.ALIGN and loose % ragged.ALIGN == 0
        assert entries <= static < max(2 * entries, ragged.ALIGN + 1)
    assert len({width_for(entries, True) for entries in range(1, 5000)}) == 10  # 16, 32, ..., 8192


@pytest.mark.parametrize("static", [False, True])
def test_waves_stay_within_the_limit_as_really_allocated(model, caches, traced, static):
    inputs = prompt(model)
    expected = tokens(model, inputs)
    with torch.inference_mode():
        filled = prefill(model, inputs, window=32)
        kept = [None if m.full else to_sets(kept_mask(m, observe(filled))) for m in methods()]
        sizes = ragged_bytes(filled, kept, NEW - 1, static)
    limit = max(max(sizes), 2 * min(sizes) + 1)
    found = tokens(model, inputs, cache="ragged", compiled=static, max_branch_bytes=limit)
    assert found == expected
    assert len(caches) > 2 and sum(count for _, count in caches) == len(GRID)
    assert all(cache.nbytes <= limit for cache, _ in caches)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("at", ["building", "stepping"])
def test_out_of_memory_halves_the_wave_and_lets_go_of_the_arena(
    model, endings, monkeypatch, traced, at, static
):
    inputs = prompt(model)
    expected = tokens(model, inputs, cache="compact")
    arena = model.compiled_step.arena
    said, held, make, spread = [], [], RaggedCache.__init__, RaggedCache.spread

    def limited(self, filled, kept, *rest):
        held.append(arena.nbytes)
        make(self, filled, kept, *rest)
        if at == "building" and len(kept) > 2:
            raise FakeOutOfMemory("no block of this size")

    def limited_step(self, latest):
        if at == "stepping" and self.size > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return spread(self, latest)

    monkeypatch.setattr(RaggedCache, "__init__", limited)
    monkeypatch.setattr(RaggedCache, "spread", limited_step)
    assert tokens(model, inputs, cache="ragged", compiled=static, log=said.append) == expected
    assert said and all("out of memory" in sentence for sentence in said)
    assert held[1] == 0, "the blocks of the failed try were freed before the next"


def test_branches_that_refresh_decode_compactly_with_the_same_tokens(model, caches, traced):
    grid = [build({"name": "snapkv", "window": 8, "refresh": r}, 40) for r in ("exact", "oracle", None)]
    inputs = prompt(model)

    def answers(**settings):
        return [a.tokens for a in generate(model, inputs, grid, max_new_tokens=8, **settings)]

    assert answers(compiled=True) == answers(cache="ragged") == answers(cache="compact")
    assert not caches and not traced
    oracle = [build({"name": "snapkv", "window": 8, "refresh": "oracle"}, 40)]  # selects, then is one-shot
    (answer,) = generate(model, inputs, oracle, max_new_tokens=8, compiled=True)
    assert answer.tokens == answers()[1] and len(caches) == 1


def test_a_ragged_cache_is_built_as_large_as_its_branches_were_counted():
    """For answers of any length, those included that just fill their rows."""
    filled = FilledPrompt(2, 2, 9, 16)
    kept = [None, [[torch.arange(3), torch.arange(5)], [torch.arange(4), torch.arange(2)]]]
    for count in range(1, 40):
        path = Ragged(SimpleNamespace(step=None), filled, count, compiled=False)
        assert path.start(kept, [])[0].nbytes == sum(path.sizes(kept)), count


def test_the_path_is_compact_unless_something_asks_for_the_other(model, monkeypatch):
    filled = FilledPrompt(2, 2, 9, 16)

    def path(cache="auto", compiled=False, refreshing=False):
        return type(choose(model, filled, 4, refreshing, cache, compiled))

    assert path() is Compact and path("ragged") is Ragged and path(compiled=True) is Ragged
    assert path("ragged", refreshing=True) is path("auto", True, refreshing=True) is Compact
    assert path("compact", compiled=True) is Compact
    monkeypatch.setattr(flash, "usable", lambda device, dtype, dim: True)
    assert path() is Ragged and path("compact") is Compact
    with pytest.raises(ValueError, match="unknown cache"):
        path("paged")
