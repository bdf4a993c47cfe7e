"""Waves, late looks at the tokens and shared statistics change time and memory, never an answer."""

from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image

from kvbench import memory
from kvbench.engine import generate, prefill
from kvbench.engine.cache import CompactCache
from kvbench.engine.waves import branch_bytes, default_limit, first_wave, in_waves
from kvbench.memory import ran_out
from kvbench.methods import build
from kvbench.methods.observation import Observation
from kvbench.models import load

decoding, generating = (import_module(f"kvbench.engine.{name}") for name in ("decode", "generate"))

# (method, budget, window, refresh): all ways in which a branch can decode.
GRID = [
    ("snapkv", 48, 16, None),
    ("fullkv", None, None, None),
    ("snapkv+window", 48, 16, None),  # equal to the first: decoded once
    ("pyramidkv", 40, 8, None),
    ("adakv+ecokv", 24, 4, None),
    ("snapkv+bacon", 40, 8, {"name": "rcr", "offload": True}),
    ("snapkv", 40, 8, "exact"),
    ("snapkv", 40, 8, "oracle"),
]


def methods():
    return [build({"name": n, "window": w, "refresh": r}, b) for n, b, w, r in GRID]


@pytest.fixture(scope="module")
def qwen():
    return load({"name": "toy", "adapter": "qwen2_vl", "weights": "random", "size": "toy", "device": "cpu"})


@pytest.fixture(scope="module")
def inputs(qwen):
    noise = torch.randint(0, 256, (168, 224, 3), generator=torch.Generator().manual_seed(1))
    return qwen.prepare("Read it aloud.", [Image.fromarray(noise.byte().numpy())])


@pytest.fixture
def batches(monkeypatch):
    """How many branches every compact cache was built for."""
    seen = []
    build_cache = CompactCache.__init__

    def counted(self, prompt, kept, *rest):
        seen.append(len(kept))
        build_cache(self, prompt, kept, *rest)

    monkeypatch.setattr(CompactCache, "__init__", counted)
    return seen


@pytest.fixture
def answers(qwen, inputs):
    def run(**settings):
        found = generate(qwen, inputs, methods(), max_new_tokens=14, trace=True, **settings)
        arrays = [[getattr(a.trace, f) for f in ("drift", "refreshed", "overlap", "reads")] for a in found]
        return [(a.tokens, a.text, a.stopped, a.kept) for a in found], arrays

    return run


def equal(first, second):
    assert first[0] == second[0]
    for ours, theirs in zip(first[1], second[1], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.fixture(scope="module")
def several_endings(qwen, inputs):
    """Stop tokens that end some branches early and at different steps."""
    found = generate(qwen, inputs, methods(), max_new_tokens=14)
    before = qwen.stop_ids
    qwen.stop_ids = frozenset({found[1].tokens[5], found[4].tokens[8]})
    yield
    qwen.stop_ids = before


def test_answers_do_not_depend_on_the_waves(answers, batches, several_endings):
    whole = answers()
    assert len({tuple(tokens) for tokens, *_ in whole[0]}) > 2
    assert len({len(tokens) for tokens, *_ in whole[0]}) > 1
    single = max(batches)
    batches.clear()
    equal(whole, answers(max_branch_bytes=1))
    assert max(batches) == 1 and len(batches) > single  # a wave each (and the oracle's own decode)
    equal(whole, answers(max_branch_bytes=200_000))


def test_fullkv_decodes_apart_when_it_has_to(qwen, inputs, batches):
    prompt = prefill(qwen, inputs, window=4)
    sizes = [branch_bytes(prompt, None, 4)]
    grid = [build({"name": n, "window": 4}, b) for n, b in (("snapkv", 16), ("snapkv", 12), ("fullkv", None))]
    generate(qwen, inputs, grid, max_new_tokens=4, max_branch_bytes=sizes[0])
    assert batches == [1, 2]


def test_prefill_and_selection_run_once_whatever_the_waves(qwen, inputs, monkeypatch):
    calls = []
    attend = Observation._attend
    monkeypatch.setattr(Observation, "_attend", lambda self, w: calls.append(w) or attend(self, w))
    prompts = []
    monkeypatch.setattr(generating, "prefill", lambda *a, **k: prompts.append(1) or prefill(*a, **k))
    names = ["snapkv", "snapkv+bacon", "snapkv+mixkv", "pyramidkv", "adakv", "adakv+bacon", "snapkv+vnorm"]
    grid = [build({"name": n, "window": 16}, budget) for n in names for budget in (32, 48)]
    grid.append(build({"name": "snapkv+ecokv"}, 32))
    generate(qwen, inputs, grid, max_new_tokens=3, max_branch_bytes=1)
    assert sorted(calls) == [1, 4, 16]  # once per window size; 1 is the last query's
    assert prompts == [1]


def test_half_of_the_free_memory_is_for_branches(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1001)
    assert default_limit(torch.device("cpu")) == 500


class FakeOutOfMemory(RuntimeError):
    """What torch calls its own."""


FakeOutOfMemory.__name__ = "OutOfMemoryError"


@pytest.mark.parametrize("at", ["building", "stepping"])
def test_out_of_memory_halves_the_wave_and_is_reported(qwen, answers, monkeypatch, several_endings, at):
    whole = answers()
    sizes, said = [], []
    build_cache, step = CompactCache.__init__, type(qwen).step
    steps = {"n": 0}

    def limited(self, prompt, kept, *rest):
        sizes.append(len(kept))
        steps["n"] = 0
        if at == "building" and len(kept) > 2:
            raise FakeOutOfMemory("no block of this size")
        build_cache(self, prompt, kept, *rest)

    def limited_step(self, tokens, position, state):
        steps["n"] += 1
        if at == "stepping" and len(tokens) > 2 and steps["n"] == 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return step(self, tokens, position, state)

    monkeypatch.setattr(CompactCache, "__init__", limited)
    monkeypatch.setattr(type(qwen), "step", limited_step)
    equal(whole, answers(log=said.append))
    assert said and all("out of memory" in sentence for sentence in said)
    assert len(said) < len(GRID)


@pytest.mark.parametrize("held,error,tried", [
    (True, FakeOutOfMemory("no block"), 2), (False, FakeOutOfMemory("no block"), 1),
    (True, RuntimeError("a bug"), 1),
])  # fmt: skip
def test_a_prefill_is_tried_again_once_the_last_sample_has_let_go(
    qwen, inputs, monkeypatch, held, error, tried
):
    calls = []

    def first_fails(*args, **settings):
        calls.append(1)
        if len(calls) == 1:
            raise error
        return prefill(*args, **settings)

    expected = generate(qwen, inputs, methods()[:1], max_new_tokens=4)[0].tokens
    monkeypatch.setattr(generating, "prefill", first_fails)
    monkeypatch.setattr(generating, "release", lambda adapter: held)
    if tried == 2:
        assert generate(qwen, inputs, methods()[:1], max_new_tokens=4)[0].tokens == expected
    else:
        with pytest.raises(type(error), match=str(error)):
            generate(qwen, inputs, methods()[:1], max_new_tokens=4)
    assert len(calls) == tried


def test_a_branch_that_does_not_fit_alone_is_an_error_not_an_answer(qwen, inputs, monkeypatch):
    def no_memory(*_):
        raise FakeOutOfMemory("nothing left")

    monkeypatch.setattr(CompactCache, "__init__", no_memory)
    with pytest.raises(FakeOutOfMemory):
        generate(qwen, inputs, methods(), max_new_tokens=4, log=lambda _: None)


def test_other_errors_are_not_retried(qwen, inputs, monkeypatch):
    calls = []

    def broken(*_):
        calls.append(1)
        raise RuntimeError("a bug")

    monkeypatch.setattr(CompactCache, "__init__", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        generate(qwen, inputs, methods()[:4], max_new_tokens=4)
    assert calls == [1]
    assert not ran_out(ValueError("not enough memory")) and ran_out(MemoryError())


@pytest.mark.parametrize("interval", [2, 5, 8])
def test_looking_at_tokens_every_few_steps_changes_nothing(answers, monkeypatch, several_endings, interval):
    whole = answers()
    monkeypatch.setattr(decoding, "CPU_INTERVAL", interval)
    late = answers()
    equal(whole, late)
    assert [len(a[0]) for a in late[1]] == [
        len(tokens) - 1 for tokens, *_ in late[0]
    ]  # traces end with answers


def test_waves_cover_every_branch_once_within_the_limit():
    generator = np.random.default_rng(0)
    for _ in range(50):
        sizes = generator.integers(1, 40, 12).tolist()
        limit, waves = int(generator.integers(1, 120)), []
        in_waves(sizes, limit, waves.append, print)
        assert sorted(b for wave in waves for b in wave) == list(range(12))
        assert all(len(w) == 1 or sum(sizes[b] for b in w) <= limit for w in waves)
    assert first_wave([5, 1, 1, 1], 7) == 3 and first_wave([9, 1], 7) == 1 and first_wave([3, 3], 7) == 2


@pytest.mark.parametrize(("kind", "waits"), [("cuda", 1), ("cpu", 0)])
def test_a_lap_ends_when_the_devices_work_has(monkeypatch, kind, waits):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock = generating._Clock(torch.device(kind))
    clock.lap("prefill")
    assert len(waited) == waits and set(clock.laps) == {"prefill"}
