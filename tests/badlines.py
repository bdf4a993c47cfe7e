"""Hundreds of strange command lines: every key with every value that a slip of the hand may give it."""

from __future__ import annotations

from collections.abc import Iterator

HUGE = "100000000000000000000"  # beyond 64 bits
VALUES = (
    *("", "null", "abc", "-3", "0", "1.5", "²", HUGE, f"-{HUGE}", "1e400", "nan", "true", "[a]", "[]", "{}"),
    *("{a: 1}", "'a${x}'", "a=b", "a b", "é", "(", "a,,b", "a#b", "a&b"),
)
KEYS = (
    *("model", "benchmark", "method", "refresh", "budget", "seed", "prompt", "limit", "store", "shard"),
    *("shards", "sync", "max_branch_bytes", "decode", "decode.compile", "launcher", "exclude", "tracking"),
    *("retries", "fail_fast", "trace", "axes", "experiment", "profile", "hydra.searchpath", ""),
    *("model.name", "model.weights", "model.dtype", "model.device", "model.max_length", "model.head_scores"),
    *("model.revision", "model.adapter", "model.window", "model.attention", "model.size", "model.new"),
    *("benchmark.name", "benchmark.data", "benchmark.max_new_tokens", "benchmark.until", "benchmark.task"),
    *("benchmark.subset", "benchmark.default_limit", "benchmark.metric", "benchmark.prompts"),
    *("benchmark.needs", "benchmark.kind", "benchmark.frames", "benchmark.revision"),
    *("method.window", "method.name", "method.score.pool", "method.score.kernel", "method.score"),
    *("method.capacity", "refresh.tau", "tracking.mode", "tracking.images", "launcher.jobs"),
)
STORES = (
    *(
        "n={}",
        "sd={}",
        "power={}",
        "alpha={}",
        "limit={}",
        "measure={}",
        "store={}",
        "{}=1",
        "{}",
        "metric={}",
    ),
    *("development={}", "test={}", "seed={}", "drift={}", "samples={}"),
)


def sweeps() -> Iterator[list[str]]:
    """Words of commands that take overrides."""
    for key in KEYS:
        for value in VALUES:
            yield [f"{key}={value}"]
        if key:
            yield from (
                [f"~{key}"],
                [f"+{key}=1"],
                [f"++{key}=1"],
                [key],
                [f"{key}=1,2"],
                ["-m", f"{key}=,1"],
            )
