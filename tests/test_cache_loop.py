"""Both caches against attention in plain loops: any lengths, any branches that leave, many tokens."""

import pytest
import torch
from decoding import FilledPrompt, contents
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.engine.cache import TAIL_CHUNK, CompactCache
from kvbench.engine.ragged import RaggedCache, ragged_bytes
from kvbench.engine.waves import branch_bytes

LAYERS, HEADS, GROUP, LENGTH, DIM = 2, 2, 2, 60, 4
SCALING = 0.7


def kept_sets(data, branches):
    """Per branch None (everything) or ascending positions per layer and head, of very different numbers."""
    sizes = st.sampled_from([1, 2, 5, 17, 18, 31, 45, 59])
    kept = []
    for _ in range(branches):
        if data.draw(st.booleans()):
            kept.append(None)
            continue
        one = data.draw(sizes)
        alike = data.draw(st.booleans())
        counts = [[one if alike else data.draw(sizes) for _ in range(HEADS)] for _ in range(LAYERS)]
        kept.append([[torch.randperm(LENGTH)[:n].sort().values for n in layer] for layer in counts])
    return kept


class Loop:
    """What a branch holds, per layer and head, as it was told."""

    def __init__(self, prompt, sets):
        whole = torch.arange(LENGTH)
        at = lambda layer, head: whole if sets is None else sets[layer][head]  # noqa: E731
        self.keys, self.values = (
            [[stack[layer, head, at(layer, head)] for head in range(HEADS)] for layer in range(LAYERS)]
            for stack in (prompt.key_stack, prompt.value_stack)
        )

    def attend(self, layer, query, key, value):
        out = []
        for head in range(HEADS):
            self.keys[layer][head] = torch.cat([self.keys[layer][head], key[head]])
            self.values[layer][head] = torch.cat([self.values[layer][head], value[head]])
            for one in query[head * GROUP : (head + 1) * GROUP, 0]:
                weights = (self.keys[layer][head] @ one * SCALING).softmax(0)
                out.append(weights @ self.values[layer][head])
        return torch.stack(out)


def walk(cache, loops, steps):
    for _ in range(steps):
        count = len(loops)
        for layer in range(LAYERS):
            query = torch.randn(count, HEADS * GROUP, 1, DIM)
            key, value = torch.randn(2, count, HEADS, 1, DIM)
            if isinstance(cache, RaggedCache):  # a batch by places
                place = lambda t: t.new_zeros(cache.size, *t.shape[1:]).index_copy(0, cache.places, t)  # noqa: E731
                found = cache.pick(cache.attend(layer, place(query), place(key), place(value), SCALING))
            else:
                found = cache.attend(layer, query, key, value, SCALING)
            for i, loop in enumerate(loops):
                expected = loop.attend(layer, query[i], key[i], value[i])
                torch.testing.assert_close(found[i, 0], expected, atol=2e-5, rtol=1e-4)
        cache.advance()


def check_contents(cache, loops):
    assert cache.branches == len(loops)
    for i, loop in enumerate(loops):
        for layer in range(LAYERS):
            for head in range(HEADS):
                keys, values = contents(cache, i, layer, head)
                assert torch.equal(keys, loop.keys[layer][head])
                assert torch.equal(values, loop.values[layer][head])


@pytest.mark.parametrize("kind", ["compact", "ragged", "static"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_cache_attends_as_a_loop_does(kind, data):
    torch.manual_seed(data.draw(st.integers(0, 999)))
    prompt = FilledPrompt(LAYERS, HEADS, LENGTH, DIM)
    branches = data.draw(st.integers(1, 6))
    kept = kept_sets(data, branches)
    room = data.draw(st.integers(9, 12))
    if kind == "compact":
        cache = CompactCache(prompt, kept, data.draw(st.integers(1, 4)))
    else:
        cache = RaggedCache(prompt, kept, room, kind == "static")
    loops = [Loop(prompt, sets) for sets in kept]
    for _ in range(3):
        walk(cache, loops, data.draw(st.integers(1, 3)))
        check_contents(cache, loops)
        stay = data.draw(st.lists(st.integers(0, len(loops) - 1), min_size=1, unique=True).map(sorted))
        cache.retain(stay)
        loops = [loops[i] for i in stay]
        check_contents(cache, loops)
    with pytest.raises(IndexError):
        contents(cache, len(kept) + 9, 0, 0)


def test_a_padded_bucket_outgrows_its_room():
    """Rows of different length side by side, for more tokens than are given room at once."""
    torch.manual_seed(0)
    prompt = FilledPrompt(LAYERS, HEADS, LENGTH, DIM)
    lengths = [[30, 40], [33, 35]]
    kept = [[[torch.arange(n) + shift for n in layer] for layer in lengths] for shift in (0, 3)]
    cache = CompactCache(prompt, kept, room=2 * TAIL_CHUNK)
    loops = [Loop(prompt, sets) for sets in kept]
    walk(cache, loops, TAIL_CHUNK + 4)
    check_contents(cache, loops)


def test_bytes_count_keys_and_values():
    torch.manual_seed(0)
    prompt = FilledPrompt(LAYERS, HEADS, LENGTH, DIM)
    sets = [[torch.arange(16), torch.arange(16)] for _ in range(LAYERS)]
    for one, length in ((sets, 16), (None, LENGTH)):
        entries = LAYERS * HEADS * (length + 4)
        assert branch_bytes(prompt, one, 4) == entries * 2 * DIM * 4
        cache = CompactCache(prompt, [one], room=4)  # no row is padded
        assert cache.nbytes == entries * 2 * DIM * 4
        ragged = RaggedCache(prompt, [one], 4)
        held = sum(t.nbytes for group in ragged.groups for t in (*group.keys, *group.values))
        assert ragged.nbytes == held == ragged_bytes(prompt, [one], 4, False)[0]
    uneven = [[torch.arange(3), torch.arange(16)] for _ in range(LAYERS)]
    assert branch_bytes(prompt, uneven, 4) == LAYERS * (3 + 16 + 8) * 2 * DIM * 4


def test_rows_of_one_bucket_and_rows_apart():
    """A bucket takes rows of at least three quarters of its longest, or at most 16 entries shorter."""
    from kvbench.engine.cache import plan_buckets

    for lengths, expected in [
        ([100, 75, 74], [[0, 1], [2]]),
        ([20, 4, 3], [[0, 1], [2]]),
        ([64, 48, 47], [[0, 1], [2]]),
        ([7, 100, 7], [[1], [0, 2]]),
        ([5, 5], [[0, 1]]),
    ]:
        assert [group.tolist() for group in plan_buckets(torch.tensor(lengths))] == expected
