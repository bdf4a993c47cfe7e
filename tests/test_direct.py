"""Scores by replay = scores when lmms-eval drives the model, to the last digit, on the generated sets."""

from __future__ import annotations

import pytest
from direct import drive
from fakestore import benchmark_cfg

from kvbench import benchmarks, models
from kvbench.engine import generate
from kvbench.methods import build

SAMPLES = 2
# Eight tokens show as much as 256 would.
NAMES = ("docqa_mini", "textqa_mini", "chartqa_mini", "caption_mini", "describe_mini")


@pytest.fixture(scope="module")
def adapter():
    cfg = {
        "name": "embedded",
        "adapter": "embedded",
        "weights": "shipped",
        "device": "cpu",
        "dtype": "float32",
    }
    return models.load(cfg)


@pytest.mark.parametrize("name", NAMES)
def test_replay_equals_direct(adapter, name):
    cfg = benchmark_cfg(name)
    benchmark = benchmarks.load({**cfg, "max_new_tokens": min(cfg["max_new_tokens"], 8)})
    method = build({"name": "snapkv", "window": 16}, 64)
    metrics = [m for m in benchmark.metrics if m in benchmark.task.aggregation()]
    direct, logged = drive(benchmark, adapter, method, benchmark.chosen(SAMPLES), metrics)
    answers = {}
    for sample in benchmark.samples(SAMPLES):
        inputs = adapter.prepare(sample.text, sample.images())
        (answer,) = generate(adapter, inputs, [method], max_new_tokens=benchmark.max_new_tokens, until=[])
        answers[sample.index] = answer.text
    assert {s["doc_id"]: s["resps"][0][0] for s in logged} == answers
    replayed = benchmark.score(answers, benchmark.chosen(SAMPLES)).metrics
    assert direct and {metric: replayed[metric] for metric in direct} == direct
