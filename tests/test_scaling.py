"""Selection uses the scaling that the model's attention was called with; what it cannot follow is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from decoding import prompt
from transformers import AutoModelForCausalLM, Gemma2Config, GptOssConfig, GraniteConfig

import kvbench
from kvbench.engine import generate, prefill
from kvbench.engine.attention import attention, plain
from kvbench.engine.generate import observe
from kvbench.errors import SetupError, UserError
from kvbench.methods import build
from kvbench.models import toy
from kvbench.models.text import TextAdapter

MULTIPLIER, W, BUDGET = 2.0, 8, 24


def adapter(config_class, **options):
    words = toy.tokenizer()
    torch.manual_seed(0)
    config = config_class(**toy.TEXT, head_dim=16, vocab_size=len(words), **options)
    return TextAdapter("toy", AutoModelForCausalLM.from_config(config), words, stop_ids=[257])


@pytest.fixture(scope="module")
def granite():
    return adapter(GraniteConfig, attention_multiplier=MULTIPLIER)


def attentions(model, inputs):
    """[L, H*G, N, N] as transformers computes and returns them."""
    with plain(model.model, "eager"), torch.inference_mode():
        return torch.cat(model.model(**inputs.tensors, output_attentions=True).attentions)


def close(ours, expected):
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=2e-3)


def by_hand(attention, heads, window=W):
    """[L, H, M] SnapKV's score, one mean after the other."""
    layers, query_heads, length, _ = attention.shape
    mean = attention[:, :, -window:, : length - window].mean(2).view(layers, heads, -1, length - window)
    return torch.nn.functional.avg_pool1d(mean.mean(2), 5, 1, 2)


def test_window_attention_is_the_models_own(granite):
    inputs = prompt(granite)
    with torch.inference_mode():
        filled = prefill(granite, inputs, window=W, extras={"attention_sums"})
        expected = attentions(granite, inputs)
        assert filled.scaling == [MULTIPLIER] * granite.layers
        observation = observe(filled)
        for layer in range(granite.layers):
            close(observation.rows(layer, W), expected[layer, :, -W:])
        close(filled.attention_sums, expected.sum(2))


def test_what_is_kept_equals_a_brute_force(granite):
    inputs = prompt(granite)
    scores = by_hand(attentions(granite, inputs), granite.kv_heads)
    best = scores.topk(BUDGET - W).values.sum(-1)
    with torch.inference_mode():
        filled = prefill(granite, inputs, window=W)
        given = filled.key_stack, filled.value_stack, filled.window_queries
        for scaling, same in ((MULTIPLIER, True), (None, False)):
            kept = kvbench.select(*given, method="snapkv", budget=BUDGET, window=W, scaling=scaling)
            chosen = torch.stack([torch.stack([head[:-W] for head in layer]) for layer in kept])
            # By the mass that is kept: entries of equal scores may stand for each other.
            assert torch.allclose(scores.gather(-1, chosen).sum(-1), best, atol=1e-5) is same
        close(observe(filled).view(W).b, scores)


def test_fullkv_equals_the_models_own_generate(granite):
    inputs = prompt(granite)
    with plain(granite.model):
        out = granite.model.generate(
            **inputs.tensors, max_new_tokens=8, do_sample=False, eos_token_id=257, pad_token_id=257
        )
    full = build({"name": "fullkv"}, None)
    assert generate(granite, inputs, [full], max_new_tokens=8)[0].tokens == out[0, inputs.length :].tolist()


@pytest.mark.parametrize("policy", ["exact", "rcr", "threshold"])
def test_re_selection_looks_with_the_models_scaling(granite, monkeypatch, policy):
    """Every step that a policy sees has it."""
    from kvbench.engine import refresh

    seen, make = set(), refresh.Step

    def noted(*arguments):
        seen.add(arguments[7])
        return make(*arguments)

    monkeypatch.setattr(refresh, "Step", noted)
    method = build({"name": "snapkv", "window": W, "refresh": policy}, BUDGET)
    generate(granite, prompt(granite), [method], max_new_tokens=4)
    assert seen == {MULTIPLIER}


@pytest.mark.parametrize("scaling", [0, -1, float("nan"), "2", True])
def test_a_scaling_that_is_none_is_refused(scaling):
    keys, values = torch.randn(2, 1, 1, 30, 8)
    with pytest.raises(UserError, match="scaling must be a positive number"):
        kvbench.select(keys, values, torch.randn(1, 1, 8, 8), budget=12, window=8, scaling=scaling)


def test_a_soft_cap_is_refused_when_the_model_is_loaded():
    with pytest.raises(UserError, match="caps its attention's logits at 50.0"):
        adapter(Gemma2Config, layer_types=["full_attention"] * 4)


def test_what_attention_would_drop_ends_the_run():
    sinks = adapter(
        GptOssConfig, layer_types=["full_attention"] * 4, num_local_experts=2, num_experts_per_tok=1
    )
    with pytest.raises(SetupError, match=r"attention sinks \(s_aux\)"):
        prefill(sinks, prompt(sinks), window=W)


def test_attention_without_a_scaling_is_that_of_transformers():
    """None is one over the root of the heads' dimensions, as in its eager and sdpa functions."""
    asked = []
    state = SimpleNamespace(attend=lambda *given: asked.append(given[-1]))
    query = torch.zeros(1, 2, 3, 16)
    for scaling in (None, MULTIPLIER):
        attention(SimpleNamespace(layer_idx=0), query, query, query, None, scaling, kv_state=state)
    assert asked == [0.25, MULTIPLIER]
