"""Cache size, peak memory and total time per method, as the papers' efficiency tables have them.

    kvbench bench efficiency table=ecokv_table5
    kvbench bench efficiency model=smollm2 length=1024 new_tokens=64 repeats=2

Every method runs alone. The context is synthetic (random tokens) unless a benchmark is named; `cache_GiB`
holds the prompt's keys and values that the method keeps, `total_s` prefill, selection and decode; all are
means over repeats or samples. With --set weights=random size=full no checkpoint is needed: times and sizes
depend on shapes alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from kvbench.bench import report, workload
from kvbench.checks import suggest
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser

_ECOKV = [c + s for c in ("snapkv", "pyramidkv") for s in ("", "+mixkv", "+ecokv")]
_BACON = [c + s for c in ("snapkv", "sparsemm", "pyramidkv", "adakv") for s in ("", "+mixkv", "+bacon")]
# BACON does not print its model's settings, new tokens or budget: those of its main tables are taken here.
TABLES: dict[str, dict[str, Any]] = {
    "bacon_table5": {
        "model": "llava_next_mistral_7b", "length": 32000, "new_tokens": 512, "budget": 64, "repeats": 3,
        "methods": ["fullkv", *_BACON],
    },
    "ecokv_table5": {
        "model": "qwen2_vl_7b", "length": 8192, "new_tokens": 512, "budget": 64, "repeats": 3,
        "methods": ["fullkv", *_ECOKV],
    },
    "ecokv_table10": {
        "model": "qwen2_vl_7b", "benchmark": "textvqa", "subset": "random_100", "limit": 100,  # appendix B.3
        "new_tokens": None, "budget": 64, "repeats": 1, "methods": ["fullkv", *_ECOKV],
    },
}  # fmt: skip


def rows(
    model: Any, prompts: Sequence[Any], methods: Sequence[Any], *, new_tokens: int, repeats: int = 1
) -> list[dict[str, Any]]:
    """One row per method. prompts: inputs, or functions that make them when their turn comes."""
    from kvbench import engine

    peak = workload.Peak(model.device)
    entry_bytes = 2 * model.head_dim * next(model.model.parameters()).element_size()
    runs: dict[int, list[tuple[float, float, float, float, float]]] = {i: [] for i in range(len(methods))}
    first = prompts[0]() if callable(prompts[0]) else prompts[0]
    engine.generate(model, first, [methods[0]], max_new_tokens=2)  # warms up
    for _ in range(repeats):
        for prompt in prompts:
            inputs = prompt() if callable(prompt) else prompt
            for number, method in enumerate(methods):
                laps: dict[str, float] = {}
                peak.reset()
                start = time.perf_counter()
                (answer,) = engine.generate(model, inputs, [method], max_new_tokens=new_tokens, seconds=laps)
                total = time.perf_counter() - start
                cache = entry_bytes * sum(sum(layer) for layer in answer.kept)
                runs[number].append((cache, peak.bytes(), total, laps["decode"], len(answer.tokens)))
    measured = []
    for number, method in enumerate(methods):
        cache, memory, total, decode, tokens = map(statistics.fmean, zip(*runs[number], strict=True))
        measured.append(
            {
                "method": method.name,
                "cache_GiB": cache / 2**30,
                "peak_GiB": memory / 2**30,
                "total_s": total,
                "decode_s": decode,
                "new_tokens": tokens,
                "runs": len(runs[number]),
            }
        )
    return measured


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows as a table and write them to runs/bench/efficiency-NAME.json."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = Parser(prog="kvbench bench efficiency", description=__doc__.splitlines()[0])
    parser.add_argument("--table", help=f"settings of a paper's table: {', '.join(TABLES)}")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the model")
    parser.add_argument("--length", type=int, default=1024, help="tokens of synthetic context")
    parser.add_argument("--benchmark", help="take prompts from it instead, and end answers as it does")
    parser.add_argument("--limit", type=int, default=20, help="samples of the benchmark")
    parser.add_argument("--subset", help="of the benchmark, as random_100 (default: the benchmark's own)")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens each method generates")
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--methods", nargs="+", default=["fullkv", "snapkv", "snapkv+ecokv", "snapkv+bacon"])
    parser.add_argument("--repeats", type=int, default=1)
    table = parser.known(words).table
    if table is not None:
        if table not in TABLES:
            raise UserError(f"there is no table {table!r}: {suggest(table, TABLES)}")
        parser.set_defaults(**TABLES[table])  # what the command line says still wins
    given = parser.known(words)
    for name in ("length", "limit", "repeats", "budget"):
        if getattr(given, name) < 1:
            raise UserError(f"--{name} must be at least 1, not {getattr(given, name)}.")
    methods = workload.methods(given.methods, [given.budget], given.window)
    model = workload.adapter(given.model, given.set)
    new_tokens = given.new_tokens
    if given.benchmark is None:
        prompts: list[Any] = [workload.random_prompt(model, given.length)]
        workload.endless(model)
    else:
        from kvbench import benchmarks

        chosen = [] if given.subset is None else [f"subset={given.subset}"]
        benchmark = benchmarks.load(workload.config("benchmark", given.benchmark, chosen))
        new_tokens = new_tokens or benchmark.max_new_tokens
        prompts = [
            lambda sample=sample: benchmark.prepare(model, sample.text, sample.images())
            for sample in benchmark.samples(given.limit)
        ]
    measured = rows(model, prompts, methods, new_tokens=new_tokens, repeats=given.repeats)
    report.show(measured)
    name = f"efficiency-{table or given.model}"
    print(f"wrote {report.save(name, measured, vars(given), str(model.device))}")


if __name__ == "__main__":
    main()
