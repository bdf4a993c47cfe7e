"""FullKV through kvbench's engine against `model.generate`, token for token, on the embedded benchmarks.

    python scripts/check_generate.py --samples 20

Prints one line a benchmark and exits with 1 when a token differs.
"""

from __future__ import annotations

import argparse
import sys

import torch

from kvbench import benchmarks, engine, methods, models
from kvbench.engine.attention import plain
from kvbench.planning import compose, plan

NAMES = ("docqa_mini", "textqa_mini", "chartqa_mini", "caption_mini", "describe_mini")


def configs(name: str) -> tuple[dict, dict]:
    """Resolved configs of the embedded model and a benchmark."""
    with compose.session():
        (job,) = plan.jobs([f"benchmark={name}", "model=embedded", "method=fullkv"], multirun=False)
    return job.config["model"], job.config["benchmark"]


@torch.inference_mode()
def differing(adapter, benchmark, samples: int, new_tokens: int) -> list[int]:
    """Indices of samples whose tokens differ; also with a budget that holds the whole prompt."""
    wrong = []
    full = methods.build({"name": "fullkv"}, None)
    roomy = methods.build({"name": "snapkv+bacon", "window": 16}, 100_000)
    for sample in benchmark.samples(samples):
        inputs = adapter.prepare(sample.text, sample.images())
        ours = engine.generate(adapter, inputs, [full, roomy], max_new_tokens=new_tokens)
        with plain(adapter.model):
            ids = adapter.model.generate(
                **inputs.tensors,
                attention_mask=torch.ones_like(inputs.tensors["input_ids"]),
                max_new_tokens=new_tokens,
            )
        theirs = ids[0, inputs.length :].tolist()
        if any(answer.tokens != theirs for answer in ours):
            wrong.append(sample.index)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument(
        "--new-tokens", type=int, default=48, help="at most this many, so that captions end in time"
    )
    options = parser.parse_args()
    adapter, failed = None, False
    for name in NAMES:
        model, cfg = configs(name)
        adapter = adapter or models.load(model)
        benchmark = benchmarks.load(cfg)
        limit = min(options.new_tokens, benchmark.max_new_tokens)
        wrong = differing(adapter, benchmark, options.samples, limit)
        failed |= bool(wrong)
        print(
            f"{name}: {options.samples - len(wrong)} of {options.samples} samples equal model.generate",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
