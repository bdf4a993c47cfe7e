"""The engine's invariants: exact prefill and decode, real compact storage, batching that changes nothing."""

import pytest
import torch
from decoding import contents
from PIL import Image

from kvbench.engine import decode, generate, prefill
from kvbench.engine.attention import plain
from kvbench.engine.cache import CompactCache, plan_buckets
from kvbench.engine.generate import observe
from kvbench.engine.prefill import column_sums
from kvbench.engine.refresh import Plan
from kvbench.errors import UserError
from kvbench.methods import build
from kvbench.methods.select import kept_mask, to_sets
from kvbench.models import load

LONG = (
    "Rain falls when drops in a cloud grow too heavy. Rivers carry it back to the sea, where it rises again. "
)
PROMPTS = ["What is the capital of France?", "Name three colours.", "Summarise: " + LONG * 8]
GRID = [
    ("fullkv", None, None),
    ("snapkv", 48, 16),
    ("snapkv+vnorm", 48, 16),  # as many entries as the one before, but others
    ("snapkv+bacon", 64, 16),
    ("pyramidkv", 40, 8),
    ("adakv+ecokv", 24, 4),
    ("adakv", 96, 32),
    ("snapkv+keydiff", 33, 32),
    ("snapkv+h2o", 40, 16),
]


def methods(grid=GRID):
    return [build({"name": name, "window": window}, budget) for name, budget, window in grid]


@pytest.fixture(scope="module")
def smollm2():
    return load({"name": "smollm2", "adapter": "text", "device": "cpu"})


@pytest.fixture(scope="module")
def qwen():
    cfg = {
        "name": "toy",
        "adapter": "qwen2_vl",
        "weights": "random",
        "size": "toy",
        "device": "cpu",
        "seed": 3,
    }
    return load(cfg)


def picture(seed, size=(224, 168)):
    noise = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(noise.byte().numpy())


def qwen_inputs(adapter, seed=0):
    return adapter.prepare(f"Read line {seed} aloud, please.", [picture(seed)])


def reference(adapter, inputs, count):
    """Greedy tokens by model.generate with transformers' own attention and its own positions."""
    tensors = {k: v for k, v in inputs.tensors.items() if k != "position_ids"}
    with plain(adapter.model):
        out = adapter.model.generate(
            **tensors,
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=sorted(adapter.stop_ids),
            pad_token_id=0,
        )
    return out[0, inputs.length :].tolist()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_fullkv_equals_generate_smollm2(smollm2, prompt):
    inputs = smollm2.prepare(prompt, [])
    answers = generate(
        smollm2, inputs, methods([("fullkv", None, None), ("snapkv", 4000, 32)]), max_new_tokens=24
    )
    expected = reference(smollm2, inputs, 24)
    assert answers[0].tokens == expected
    assert answers[1].tokens == expected  # a budget that holds the prompt is FullKV
    assert answers[1].kept == [[inputs.length] * 3] * 30


@pytest.mark.parametrize("seed", range(4))
def test_fullkv_equals_generate_qwen2_vl(qwen, seed):
    inputs = qwen_inputs(qwen, seed)
    assert inputs.next_position < inputs.length  # M-RoPE: an image spans fewer positions than tokens
    assert int(inputs.visual_mask.sum()) == 48
    expected = reference(qwen, inputs, 24)
    assert len(set(expected)) > 3  # a toy that repeats one token would prove nothing
    answers = generate(
        qwen, inputs, methods([("fullkv", None, None), ("adakv+bacon", 4000, 16)]), max_new_tokens=24
    )
    assert [a.tokens for a in answers] == [expected, expected]


def test_a_wrong_position_shows_on_the_toy(qwen):
    inputs = qwen_inputs(qwen, 0)
    expected = reference(qwen, inputs, 24)
    inputs.next_position = inputs.length
    assert generate(qwen, inputs, methods([("fullkv", None, None)]), max_new_tokens=24)[0].tokens != expected


def test_vision_tower_keeps_its_attention(qwen):
    assert qwen.model.config.get_text_config()._attn_implementation == "kvbench"
    assert qwen.model.config.vision_config._attn_implementation != "kvbench"


def test_model_refuses_to_run_without_a_state(qwen):
    with pytest.raises(RuntimeError, match="kvbench.engine"):
        qwen.model(**qwen_inputs(qwen).tensors)


@pytest.mark.parametrize("family", ["smollm2", "qwen"])
def test_branch_alone_equals_branch_in_batch(family, request):
    adapter = request.getfixturevalue(family)
    inputs = qwen_inputs(adapter, 1) if family == "qwen" else adapter.prepare(PROMPTS[2], [])
    together = generate(adapter, inputs, methods(), max_new_tokens=20)
    alone = [generate(adapter, inputs, [m], max_new_tokens=20)[0] for m in methods()]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    assert [a.kept for a in together] == [a.kept for a in alone]
    assert len({tuple(a.tokens) for a in together}) > 2  # compression does change answers here


def masked_reference(adapter, inputs, mask, count):
    """Greedy tokens with the full cache and evicted entries masked out per head: nothing is compacted."""

    class Masked:
        def __init__(self, prompt):
            self.keys, self.values = list(prompt.key_stack), list(prompt.value_stack)

        def attend(self, layer, query, key, value, scaling):
            self.keys[layer] = torch.cat([self.keys[layer], key[0]], 1)
            self.values[layer] = torch.cat([self.values[layer], value[0]], 1)
            group = query.shape[1] // len(self.keys[layer])
            k, v = (t[layer].repeat_interleave(group, 0) for t in (self.keys, self.values))
            logits = query[0] @ k.transpose(1, 2) * scaling
            gone = ~mask[layer].repeat_interleave(group, 0)
            logits[:, 0, : gone.shape[1]].masked_fill_(gone, float("-inf"))
            return (logits.softmax(-1) @ v).transpose(0, 1).unsqueeze(0)

    with torch.inference_mode():
        prompt = prefill(adapter, inputs, window=32)
        state, tokens = Masked(prompt), [int(prompt.logits.argmax())]
        while len(tokens) < count and tokens[-1] not in adapter.stop_ids:
            position = inputs.next_position + len(tokens) - 1
            tokens.append(int(adapter.step(torch.tensor(tokens[-1:]), position, state).argmax()))
    return tokens


@pytest.mark.parametrize("name,budget,window", GRID[1:])
def test_compact_decode_equals_masked_full_cache(qwen, name, budget, window):
    for seed in (2, 5):  # the second sample too: nothing of the first may linger
        inputs = qwen_inputs(qwen, seed)
        method = build({"name": name, "window": window}, budget)
        mask = kept_mask(method, observe(prefill(qwen, inputs, window=32, extras=method.extras)))
        answer = generate(qwen, inputs, [method], max_new_tokens=16)[0]
        assert answer.tokens == masked_reference(qwen, inputs, mask, 16)


def test_cache_holds_exactly_the_promised_entries_for_every_sample(qwen):
    for seed in range(3):
        inputs = qwen_inputs(qwen, seed)
        with torch.inference_mode():
            prompt = prefill(qwen, inputs, window=32, extras={"attention_sums"})
            masks = [kept_mask(m, observe(prompt)) for m in methods()]
            kept = [None if m.full else to_sets(mask) for m, mask in zip(methods(), masks, strict=True)]
            cache = CompactCache(prompt, kept, room=4)
            before = cache.nbytes
            token = torch.full((len(kept),), 7)
            for step in range(3):
                qwen.step(token, inputs.next_position + step, cache)
                cache.advance()
            cache.retain([0, 2, 3, 5])
            for number, branch in enumerate([0, 2, 3, 5]):
                for layer in range(qwen.layers):
                    for head in range(qwen.kv_heads):
                        keys, values = contents(cache, number, layer, head)
                        promised = masks[branch][layer, head]
                        assert len(keys) == int(promised.sum()) + 3
                        assert torch.equal(keys[:-3], prompt.keys[layer][head][promised])
                        assert torch.equal(values[:-3], prompt.values[layer][head][promised])
        exact = sum(int(mask.sum()) for mask in masks) + 4 * len(kept) * qwen.layers * qwen.kv_heads
        assert before <= 1.4 * exact * 2 * qwen.head_dim * 4  # padding is bounded: storage really is compact


def test_prefill_captures_what_the_model_caches(smollm2):
    inputs = smollm2.prepare(PROMPTS[0], [])
    prompt = prefill(smollm2, inputs, window=8, extras={"attention_sums"})
    with plain(smollm2.model, "eager"), torch.inference_mode():
        out = smollm2.model(**inputs.tensors, use_cache=True, output_attentions=True)
    for layer in range(smollm2.layers):
        cached = out.past_key_values.layers[layer]
        assert torch.allclose(prompt.keys[layer], cached.keys[0], atol=2e-4)
        assert torch.allclose(prompt.values[layer], cached.values[0], atol=2e-4)
        assert torch.allclose(prompt.attention_sums[layer], out.attentions[layer][0].sum(-2), atol=1e-3)
        # the captured queries reproduce the last rows of the attention matrix
        keys = prompt.keys[layer].repeat_interleave(3, 0)
        logits = prompt.window_queries[layer] @ keys.transpose(1, 2) * smollm2.head_dim**-0.5
        future = torch.ones(8, inputs.length, dtype=torch.bool).triu(inputs.length - 8 + 1)
        rows = logits.masked_fill(future, float("-inf")).softmax(-1)
        assert torch.allclose(rows, out.attentions[layer][0, :, -8:], atol=1e-3)


def test_column_sums_block_by_block():
    """H2O's sums, by a loop over queries, for prompts of one block, of several, and at their borders."""
    torch.manual_seed(0)
    heads, group, dim = 2, 2, 4
    for length in (1, 4, 5, 8, 11):
        query, key = torch.randn(heads * group, length, dim), torch.randn(heads, length, dim)
        expected = torch.zeros(heads * group, length)
        for h in range(heads * group):
            for i in range(length):
                weights = (key[h // group, : i + 1] @ query[h, i] * 0.3).softmax(0)
                expected[h, : i + 1] += weights
        for block in (1, 4, 256):
            torch.testing.assert_close(column_sums(query, key, 0.3, block), expected)


def test_a_prompt_as_long_as_the_context_is_read(qwen, monkeypatch):
    inputs = qwen_inputs(qwen)
    monkeypatch.setattr(qwen, "max_length", inputs.length)
    assert prefill(qwen, inputs, window=4).length == inputs.length
    with pytest.raises(UserError, match="exceed"):
        generate(qwen, inputs, methods(), max_new_tokens=1)
    monkeypatch.setattr(qwen, "max_length", inputs.length - 1)
    with pytest.raises(UserError, match="more than the"):
        prefill(qwen, inputs, window=4)
    monkeypatch.setattr(qwen, "max_length", inputs.length + 3)  # and the answer to its last token
    assert all(1 <= len(a.tokens) <= 3 for a in generate(qwen, inputs, methods(), max_new_tokens=3))


def test_a_first_token_that_stops_is_the_whole_answer(qwen, monkeypatch):
    inputs = qwen_inputs(qwen)
    first = int(prefill(qwen, inputs, window=4).logits.argmax())
    monkeypatch.setattr(qwen, "stop_ids", frozenset([first]))
    for answer in generate(qwen, inputs, methods(), max_new_tokens=5):
        assert answer.tokens == [first] and answer.stopped == "eos"


def test_branches_are_equal_only_when_all_that_decides_is(qwen):
    """Sets that read alike from end to end but part elsewhere; equal sets under plans of unlike windows."""
    inputs = qwen_inputs(qwen, 4)
    prompt = prefill(qwen, inputs, window=16)
    two = [[torch.arange(0, 30), torch.arange(30, 60)]] * qwen.layers
    three = [[torch.arange(0, 20), torch.arange(20, 60)]] * qwen.layers
    found = decode(qwen, prompt, [two, three], max_new_tokens=12, stop_ids=())
    alone = [decode(qwen, prompt, [kept], max_new_tokens=12, stop_ids=())[0] for kept in (two, three)]
    assert found == alone and alone[0] != alone[1]
    held = [
        [torch.cat([torch.arange(12), torch.arange(inputs.length - 12, inputs.length)])] * 2
    ] * qwen.layers
    policy = build({"name": "snapkv", "window": 8, "refresh": "exact"}, 24).refresh
    plans = [Plan(policy, 8, 16), Plan(policy, 12, 12)]
    found = decode(qwen, prompt, [held, held], max_new_tokens=12, stop_ids=(), plans=plans)
    alone = [decode(qwen, prompt, [held], max_new_tokens=12, stop_ids=(), plans=[p])[0] for p in plans]
    assert found == alone and alone[0] != alone[1]


def test_samples_in_any_order_give_the_same(qwen):
    def run(order):
        found = {s: generate(qwen, qwen_inputs(qwen, s), methods(), max_new_tokens=8) for s in order}
        return {s: [(a.tokens, a.kept) for a in answers] for s, answers in found.items()}

    assert run([0, 1, 2]) == run([2, 0, 1])


def test_equal_branches_are_decoded_once(qwen, monkeypatch):
    rows = []
    step = type(qwen).step
    monkeypatch.setattr(type(qwen), "step", lambda self, t, p, s: rows.append(len(t)) or step(self, t, p, s))
    grid = [("fullkv", None, None), ("snapkv", 48, 16), ("snapkv+window", 48, 16), ("snapkv", 5000, 16)]
    answers = generate(qwen, qwen_inputs(qwen, 1), methods(grid), max_new_tokens=6)
    assert max(rows) == 2
    assert answers[0].tokens == answers[3].tokens and answers[1].tokens == answers[2].tokens


def test_finished_branches_leave_the_batch(qwen, monkeypatch):
    inputs = qwen_inputs(qwen, 1)
    answers = generate(qwen, inputs, methods(), max_new_tokens=12)
    lengths = {}
    for index, answer in enumerate(answers):  # stop every branch at a token of its own
        lengths.setdefault(answer.tokens[2 + index % 4], index)
    rows = []
    step = type(qwen).step
    monkeypatch.setattr(type(qwen), "step", lambda self, t, p, s: rows.append(len(t)) or step(self, t, p, s))
    monkeypatch.setattr(qwen, "stop_ids", frozenset(lengths))
    stopped = generate(qwen, inputs, methods(), max_new_tokens=12)
    assert rows == sorted(rows, reverse=True) and rows[0] > rows[-1]
    for full, cut in zip(answers, stopped, strict=True):
        ends = [i for i, t in enumerate(full.tokens) if t in lengths]
        expected = full.tokens[: ends[0] + 1] if ends else full.tokens
        assert cut.tokens == expected
        assert cut.stopped == ("eos" if ends else "length")


def test_until_cuts_at_the_first_occurrence(smollm2):
    inputs = smollm2.prepare("Name three colours.", [])
    whole = generate(smollm2, inputs, methods([("fullkv", None, None)]), max_new_tokens=30)[0]
    early, late = whole.text[5:8], whole.text[6:8]  # once the one is there, so is the other
    cut = generate(
        smollm2, inputs, methods([("fullkv", None, None)]), max_new_tokens=30, until=[late, early]
    )[0]
    assert cut.text == whole.text[: whole.text.find(early)]
    assert cut.stopped == "until" and len(cut.tokens) < len(whole.tokens)


def test_long_answers_outgrow_the_first_block(qwen):
    inputs = qwen_inputs(qwen, 3)
    qwen_stop, qwen.stop_ids = qwen.stop_ids, frozenset()
    try:
        answers = generate(qwen, inputs, methods(GRID[:2]), max_new_tokens=150)
        expected = reference(qwen, inputs, 150)
    finally:
        qwen.stop_ids = qwen_stop
    assert len(answers[1].tokens) == 150
    assert answers[0].tokens == expected


def test_no_new_tokens_and_too_many(qwen):
    inputs = qwen_inputs(qwen)
    prompt = prefill(qwen, inputs, window=4)
    assert decode(qwen, prompt, [None], max_new_tokens=0, stop_ids=()) == [[]]
    assert len(decode(qwen, prompt, [None], max_new_tokens=1, stop_ids=())[0]) == 1
    with pytest.raises(UserError, match="exceed"):
        generate(qwen, inputs, methods(), max_new_tokens=100_000)


def test_a_short_prompt_keeps_everything(qwen):
    inputs = qwen.prepare("x", [])
    answers = generate(qwen, inputs, methods([("fullkv", None, None), ("snapkv", 200, 64)]), max_new_tokens=4)
    assert answers[0].tokens == answers[1].tokens
    assert answers[1].kept == [[inputs.length] * 2] * 4


def test_buckets_cover_every_row_once_with_little_padding():
    lengths = torch.tensor([1232, 64, 128, 60, 250, 256, 61, 128, 1232, 0])
    groups = plan_buckets(lengths)
    assert sorted(torch.cat(groups).tolist()) == list(range(10))
    assert all(g.tolist() == sorted(g.tolist()) for g in groups)
    assert max(int(lengths[g].max()) for g in groups if 3 in g.tolist()) == 64
