"""Fixtures of the tests of the decode paths."""

import pytest
import torch
from decoding import NEW, FakeKernel, prompt, small, tokens

from kvbench.engine import compiled, flash
from kvbench.engine.compiled import CompiledStep
from kvbench.engine.ragged import RaggedCache


@pytest.fixture(scope="module")
def model(request):
    """M-RoPE, unless a test asks for another family as well."""
    family = getattr(request, "param", "qwen2_vl")
    structure = {"adapter": "text", "architecture": "llama"} if family == "llama" else {"adapter": family}
    return small(structure, layers=2)


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


@pytest.fixture
def kernel(monkeypatch):
    fake = FakeKernel()
    monkeypatch.setattr(flash, "kernel", lambda: fake)
    monkeypatch.setattr(flash, "usable", lambda device, dtype, dim: True)
    return fake
