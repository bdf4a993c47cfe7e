"""Logits that become NaN while decoding: that branch fails with prefill's sentence, the others go on."""

from __future__ import annotations

import math
from importlib import import_module

import pytest
import torch
from decoding import methods, prompt, tokens

from kvbench.engine import decode, generate, prefill
from kvbench.engine.generate import observe
from kvbench.engine.refresh import plan_of
from kvbench.errors import UserError
from kvbench.methods import build
from kvbench.methods.select import kept_mask, to_sets

pytest_plugins = ("decoding_fixtures",)
SAID = "toy produced NaN or infinite logits: load it in another dtype"
WINDOW, NEW = 16, 8


def poisoned(model, value=math.nan, plans=(), **settings):
    """Three branches and one per refresh plan; only the second keeps nothing but the window.

    Every value before the window is turned into NaN once prefill and selection are done.
    """
    inputs = prompt(model)
    grid = methods([("fullkv", None, None), ("snapkv", WINDOW + 24, WINDOW)])
    with torch.inference_mode():
        filled = prefill(model, inputs, window=WINDOW, extras={"query_basis"})
        full, some = (to_sets(kept_mask(method, observe(filled))) for method in grid)
        window = [[head[-WINDOW:] for head in layer] for layer in some]
        filled.value_stack[:, :, :-WINDOW] = value
        kept = [None, window, some, *[some for _ in plans]]
        plans = [None, None, None, *plans]
        settings = {"max_new_tokens": NEW, "stop_ids": model.stop_ids, "plans": plans, **settings}
        return decode(model, filled, kept, **settings), decode(
            model, filled, [window], **{**settings, "plans": None}
        )


def check(found, alone):
    full, window, *rest = found
    assert [window] == alone and len(window) == NEW and min(window) >= 0
    for error in (full, *rest):
        assert isinstance(error, UserError) and str(error).startswith(SAID)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("cache", ["compact", "ragged"])
def test_nan_in_a_branch_is_no_token(model, cache, value):
    check(*poisoned(model, value, cache=cache))


def test_nan_in_a_compiled_step(model, traced):
    check(*poisoned(model, compiled=True))


def test_nan_where_tokens_are_looked_at_every_few_steps(model, monkeypatch):
    monkeypatch.setattr(import_module("kvbench.engine.decode"), "CPU_INTERVAL", 3)
    check(*poisoned(model))


@pytest.mark.parametrize("policy", ["infinigen", "exact", "rcr", "oracle"])
def test_nan_in_a_branch_that_refreshes(model, policy):
    method = build({"name": "snapkv", "window": WINDOW, "refresh": policy}, WINDOW + 24)
    plan = plan_of(method, 150, model.head_dim, trace=False)
    check(*poisoned(model, plans=[plan]))


@pytest.mark.parametrize("at", [0, 4])
def test_a_late_nan_ends_its_branch_alone(model, monkeypatch, at):
    whole, step, steps = tokens(model, prompt(model)), model.step, []

    def spoiled(latest, position, state):
        logits = step(latest, position, state)
        steps.append(position)
        if len(steps) == at + 1:
            logits[2, 5] = math.nan
        return logits

    monkeypatch.setattr(model, "step", spoiled)
    found = generate(
        model, prompt(model), methods(), max_new_tokens=12, cache="compact", return_exceptions=True
    )
    error = found.pop(2)
    assert isinstance(error, UserError) and str(error).startswith(SAID)
    del whole[2]
    assert [answer.tokens for answer in found] == whole
    steps.clear()
    with pytest.raises(UserError, match=SAID):
        generate(model, prompt(model), methods(), max_new_tokens=12, cache="compact")
