"""The compiled decode step: one graph, traced once for equal shapes, with the same tokens."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from decoding import GRID, FakeOutOfMemory, both, prompt, small, tokens
from test_families import FAMILIES

from kvbench import engine
from kvbench.engine import compiled
from kvbench.engine.compiled import Arena, CompiledStep
from kvbench.errors import UserError

generating = import_module("kvbench.engine.generate")  # the package's own `generate` is the function
pytest_plugins = ("decoding_fixtures",)


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


def test_the_kernel_is_an_operator_of_a_traced_step(model, endings, kernel, traced):
    inputs = prompt(model)
    assert tokens(model, inputs, compiled=True) == tokens(model, inputs, cache="compact")
    assert kernel.calls and len(traced) == 1
    assert "flash_rows" in traced[0].code


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


def test_a_step_that_cannot_be_compiled_is_the_users_to_know(model, monkeypatch):
    def broken(graph, _):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compiled, "BACKEND", broken)
    monkeypatch.setitem(model.__dict__, "compiled_step", CompiledStep(model))
    torch._dynamo.reset()
    with pytest.raises(UserError, match="no compiler here.*set decode.compile=false"):
        tokens(model, prompt(model), compiled=True)


@pytest.mark.parametrize("device,backend,mode", [
    ("cuda", "inductor", "reduce-overhead"), ("cuda", "eager", None), ("cpu", "inductor", None),
])  # fmt: skip
def test_a_step_is_recorded_where_there_are_cuda_graphs(monkeypatch, device, backend, mode):
    asked = {}
    monkeypatch.setattr(compiled, "BACKEND", backend)
    monkeypatch.setattr(torch, "compile", lambda forward, **options: asked.update(options))
    CompiledStep(SimpleNamespace(device=torch.device(device), forward=None))
    assert asked["mode"] == mode and asked["fullgraph"] and asked["dynamic"] is False


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


def test_a_prefill_that_needs_the_memory_of_the_last_cache_gets_it(model, traced, monkeypatch):
    inputs = prompt(model)
    expected = tokens(model, inputs, compiled=True)
    arena, held = model.compiled_step.arena, []

    def prefill(*arguments, **settings):
        held.append(arena.nbytes)
        if held[-1] or settings["window"] == 33:
            raise FakeOutOfMemory("no block of this size")
        return engine.prefill(*arguments, **settings)

    monkeypatch.setattr(generating, "prefill", prefill)
    assert tokens(model, inputs, compiled=True) == expected
    assert held[0] > 0 and held[1:] == [0]
    arena.clear()
    with pytest.raises(FakeOutOfMemory):  # there is nothing to free, so it is tried once
        tokens(model, inputs, [("snapkv", 48, 33)])
    assert held[2:] == [0]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_step_of_every_family_is_one_graph(name, monkeypatch):
    reads = small(FAMILIES[name], layers=1)
    reads.stop_ids = frozenset()
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    torch._dynamo.reset()
    inputs = prompt(reads, length=60)
    grid = [("fullkv", None, None), ("snapkv", 24, 8)]
    expected = tokens(reads, inputs, grid, new=5)
    assert tokens(reads, inputs, grid, new=5, compiled=True) == expected
