"""The ragged cache and the compiled step: other storage and fewer launches, the same tokens."""

import pytest
import torch

from kvbench import provenance
from kvbench.engine import compiled, flash, generate, prefill, ragged
from kvbench.engine.compiled import Arena, CompiledStep
from kvbench.engine.generate import observe
from kvbench.engine.paths import Compact, Ragged, choose
from kvbench.engine.ragged import RaggedCache, ragged_bytes, width_for
from kvbench.errors import UserError
from kvbench.methods import build
from kvbench.methods.select import kept_mask, to_sets
from kvbench.models import load, toy

# One head keeps many times what another does, and FullKV is not the first.
GRID = [("snapkv", 48, 16), ("fullkv", None, None), ("adakv+ecokv", 24, 4), ("pyramidkv", 40, 8)]
GRID += [("snapkv+bacon", 40, 8), ("adakv", 96, 32)]
NEW = 12


def methods(grid=GRID):
    return [build({"name": name, "window": window}, budget) for name, budget, window in grid]


@pytest.fixture(scope="module")
def model(request):
    """M-RoPE, unless a test asks for another family as well."""
    family = getattr(request, "param", "qwen2_vl")
    structure = {"adapter": "text", "architecture": "llama"} if family == "llama" else {"adapter": family}
    return small(structure, layers=2)


def small(structure, layers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(toy.TEXT, "num_hidden_layers", layers)
        cfg = {"name": "toy", "weights": "random", "size": "toy", "device": "cpu", "seed": 3}
        return load({**cfg, **structure})


both = pytest.mark.parametrize("model", ["qwen2_vl", "llama"], indirect=True)


def prompt(adapter, seed=0, length=150):
    generator = torch.Generator().manual_seed(seed)
    return adapter.text_inputs(torch.randint(0, 256, (length,), generator=generator).tolist())


def tokens(adapter, inputs, grid=GRID, new=NEW, **settings):
    return [a.tokens for a in generate(adapter, inputs, methods(grid), max_new_tokens=new, **settings)]


@pytest.fixture
def endings(model, monkeypatch):
    """Stop tokens that end some branches early and at different steps."""
    whole = tokens(model, prompt(model))
    assert len({tuple(answer) for answer in whole}) > 3
    monkeypatch.setattr(model, "stop_ids", frozenset({whole[0][4], whole[3][7]}))
    ends = [len(answer) for answer in tokens(model, prompt(model))]
    assert len(set(ends)) > 1 and max(ends) == NEW
    return ends


@pytest.fixture
def traced(model, monkeypatch):
    """The compiled step without a C++ compiler: traced whole and run as traced. A list of all tracings."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", backend)
    monkeypatch.setitem(model.__dict__, "compiled_step", CompiledStep(model))
    torch._dynamo.reset()
    return graphs


@pytest.fixture
def caches(monkeypatch):
    """Every ragged cache that is built, with what it was built for."""
    built, make = [], RaggedCache.__init__

    def noted(self, prompt, kept, *rest):
        make(self, prompt, kept, *rest)
        built.append((self, len(kept)))

    monkeypatch.setattr(RaggedCache, "__init__", noted)
    return built


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


@pytest.fixture
def kernel(monkeypatch):
    fake = FakeKernel()
    monkeypatch.setattr(flash, "kernel", lambda: fake)
    monkeypatch.setattr(flash, "usable", lambda device, dtype, dim: True)
    return fake


@both
def test_tokens_are_those_of_the_compact_cache_and_of_branches_alone(model, endings, caches):
    inputs = prompt(model)
    expected = tokens(model, inputs, cache="compact")
    assert not caches
    assert tokens(model, inputs, cache="ragged") == expected
    assert caches and caches[0][0].branches < len(GRID)  # finished branches have left the batch
    assert [tokens(model, inputs, [cell], cache="ragged")[0] for cell in GRID] == expected


@both
def test_a_traced_step_has_no_break_and_is_traced_once(model, endings, caches, traced):
    for seed, length in ((0, 150), (1, 141), (2, 150)):
        inputs = prompt(model, seed, length)
        expected = tokens(model, inputs, cache="compact")
        assert tokens(model, inputs, compiled=True) == expected, seed
    assert len(traced) == 1, "shapes of prompts of similar length are equal"
    assert {cache.size for cache, _ in caches} == {len(GRID)}
    assert any(cache.branches < cache.size for cache, _ in caches)  # ended, and still in the batch
    assert [tokens(model, inputs, [cell], compiled=True)[0] for cell in GRID[:2]] == expected[:2]


def test_the_kernel_is_given_every_row_as_a_sequence_of_its_own(model, endings, kernel, caches):
    inputs = prompt(model)
    expected = tokens(model, inputs, cache="compact")
    assert tokens(model, inputs) == expected  # ragged by itself, as the kernel is there
    assert kernel.calls and len(caches) == 1
    assert tokens(model, inputs, [("snapkv", 48, 16)])[0] == expected[0]


def test_the_kernel_is_an_operator_of_a_traced_step(model, endings, kernel, traced):
    inputs = prompt(model)
    assert tokens(model, inputs, compiled=True) == tokens(model, inputs, cache="compact")
    assert kernel.calls and len(traced) == 1
    assert "flash_rows" in traced[0].code


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


def test_an_installed_kernel_is_one_of_the_circumstances(monkeypatch):
    assert "flash_attn" not in provenance.versions()
    release = provenance._version
    monkeypatch.setattr(provenance, "_version", lambda name: "2.8" if name == "flash_attn" else release(name))
    assert provenance.versions()["flash_attn"] == "2.8"


@pytest.mark.parametrize("dtype,dim,able", [
    (torch.bfloat16, 128, True), (torch.float16, 64, True), (torch.float32, 128, False),
    (torch.bfloat16, 264, False), (torch.bfloat16, 20, False),
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
                        keys, values = cache.contents(number, layer, head)
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


class FilledPrompt:
    """A prefill made up of random entries."""

    def __init__(self, layers, heads, length, dim):
        self.key_stack = torch.randn(layers, heads, length, dim)
        self.value_stack = torch.randn(layers, heads, length, dim)
        self.logits, self.length = torch.zeros(5), length


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


class FakeOutOfMemory(RuntimeError):
    """What torch calls its own."""


FakeOutOfMemory.__name__ = "OutOfMemoryError"


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
    assert tokens(model, inputs, cache="ragged", compiled=static, say=said.append) == expected
    assert said and all("out of memory" in sentence for sentence in said)
    assert held[1] == 0, "the blocks of the failed try were freed before the next"


def test_the_arena_gives_zeros_at_the_same_address(model):
    arena, like = Arena(), torch.zeros(0)
    first = arena.zeros("keys", (4, 8), like)
    address = first.data_ptr()
    first.fill_(float("nan"))
    smaller = arena.zeros("keys", (2, 8), like)
    assert smaller.data_ptr() == address and not smaller.any() and smaller.is_contiguous()
    assert arena.zeros("values", (2, 8), like).data_ptr() != address
    assert arena.nbytes == 4 * (32 + 16)
    assert arena.zeros("keys", (5, 8), like).shape == (5, 8) and arena.nbytes == 4 * (40 + 16)
    assert arena.zeros("keys", (2, 8), like.half()).dtype == torch.float16
    assert smaller._dynamo_static_input_type == "unguarded"  # what a CUDA graph needs to write to it
    arena.clear()
    assert arena.nbytes == 0


def test_caches_of_a_compiled_step_lie_where_the_last_one_lay(model, caches, traced):
    seen = []
    for seed, length in ((0, 150), (1, 140)):
        tokens(model, prompt(model, seed, length), compiled=True)
        cache, _ = caches[-1]
        seen.append([t.data_ptr() for group in cache.groups for t in (*group.keys, *group.values)])
    assert seen[0] == seen[1] and len(set(seen[0])) == 4 * model.layers


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


def test_a_step_that_cannot_be_compiled_is_the_users_to_know(model, monkeypatch):
    def broken(graph, _):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compiled, "BACKEND", broken)
    monkeypatch.setitem(model.__dict__, "compiled_step", CompiledStep(model))
    torch._dynamo.reset()
    with pytest.raises(UserError, match="no compiler here.*set decode.compile=false"):
        tokens(model, prompt(model), compiled=True)


def test_more_shapes_than_are_compiled_is_an_error_not_a_slow_step(model, traced, monkeypatch):
    monkeypatch.setattr(compiled, "SHAPES", 1)
    tokens(model, prompt(model), compiled=True)
    with pytest.raises(UserError, match="more than 1 shapes"):
        tokens(model, prompt(model), GRID[:2], compiled=True)
    assert len(traced) == 1


def test_a_really_compiled_step_gives_the_same_tokens():
    reads = small({"adapter": "text", "architecture": "llama"}, layers=1)
    reads.stop_ids = frozenset()
    torch._dynamo.reset()
    grid = GRID[:3]
    for seed in (0, 1):
        inputs = prompt(reads, seed)
        expected = tokens(reads, inputs, grid, cache="compact")
        assert len({tuple(answer) for answer in expected}) > 1
        assert tokens(reads, inputs, grid, compiled=True) == expected
