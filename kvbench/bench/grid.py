"""The whole grid of table 1 against its cells run one by one: same process, same samples, same tokens.

    kvbench bench grid model=smollm2 length=1200 new_tokens=32

The grid is FullKV and 16 methods at three budgets, 49 cells. `ratio` is the time of the whole grid over the
mean time of a cell alone; `saved` is what all cells one by one take over the whole grid. A cell whose
tokens differ between the two is counted in `differ`. Peak memory compares the grid with FullKV alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from kvbench.bench import report, workload
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser


def rows(
    model: Any,
    prompts: Sequence[Any],
    methods: Sequence[Any],
    *,
    new_tokens: int,
    single: int | None = None,
    warm: bool = True,
) -> list[dict[str, Any]]:
    """One row per prompt. single: how many cells, spread over the grid, run alone as well; None: all.

    warm: run the first cell once before anything is timed.
    """
    from kvbench import engine

    def timed(chosen: Sequence[Any]) -> tuple[float, list[list[int]]]:
        start = time.perf_counter()
        answers = engine.generate(model, prompt, list(chosen), max_new_tokens=new_tokens)
        return time.perf_counter() - start, [answer.tokens for answer in answers]

    peak = workload.Peak(model.device)
    measured = []
    alone = _spread(len(methods), single)
    for prompt in prompts:
        if warm:
            timed(methods[:1])
            warm = False
        peak.reset()
        timed(methods[:1])
        peak_one = peak.bytes()
        peak.reset()
        whole, tokens = timed(methods)
        peak_whole = peak.bytes()
        runs = [timed([methods[cell]]) for cell in alone]
        again, _ = timed(methods)  # before and after the cells, so that a drift of the machine shows
        mean = statistics.fmean(seconds for seconds, _ in runs)
        together = statistics.fmean((whole, again))
        measured.append(
            {
                "tokens": prompt.length,
                "cells": len(methods),
                "grid_s": together,
                "cell_s": mean,
                "ratio": together / mean,
                "saved": len(methods) * mean / together,
                "peak_GiB": peak_whole / 2**30,
                "peak_ratio": peak_whole / peak_one,
                "compared": len(alone),
                "differ": sum(tokens[cell] != t[0] for cell, (_, t) in zip(alone, runs, strict=True)),
            }
        )
    return measured


def _spread(count: int, wanted: int | None) -> list[int]:
    """`wanted` numbers below `count`, evenly spread; the first is always 0."""
    if wanted is None or wanted >= count:
        return list(range(count))
    return [cell * count // wanted for cell in range(wanted)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows as a table and write them to runs/bench/grid-MODEL.json."""
    parser = Parser(prog="kvbench bench grid", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the model")
    parser.add_argument("--benchmark", help="take prompts from it (embedded: docqa_mini)")
    parser.add_argument("--samples", type=int, default=1, help="prompts")
    parser.add_argument("--length", type=int, default=1200, help="tokens of prose, without a benchmark")
    parser.add_argument(
        "--new-tokens", type=int, default=32, help="at most; without a benchmark every branch decodes as many"
    )
    parser.add_argument("--budgets", type=int, nargs="+", default=[128, 64, 32])
    parser.add_argument("--window", type=int, help="default: the model's (embedded: 16), else 32")
    parser.add_argument("--single", type=int, help="cells that run alone as well (default: all)")
    given = parser.known(sys.argv[1:] if arguments is None else arguments)
    for name in ("samples", "length", "new_tokens"):
        if getattr(given, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(given, name)}.")
    if given.single is not None and given.single < 1:
        raise UserError(f"--single must be at least 1, not {given.single}.")
    model = workload.adapter(given.model, given.set)
    window = given.window or workload.config("model", given.model).get("window")
    if window is None:
        window = min(32, min(given.budgets) - 1)
    methods = workload.methods(("fullkv", *workload.METHODS), given.budgets, window)
    benchmark = given.benchmark or ("docqa_mini" if given.model == "embedded" else None)
    if benchmark is None:
        prompts = [workload.text_prompt(model, given.length)] * given.samples
        workload.endless(model)
    else:
        from kvbench import benchmarks

        asked = benchmarks.load(workload.config("benchmark", benchmark))
        prompts = [asked.prepare(model, one.text, one.images()) for one in asked.samples(given.samples)]
    measured = rows(model, prompts, methods, new_tokens=given.new_tokens, single=given.single)
    report.show(measured)
    device = str(model.device)
    print(f"wrote {report.save(f'grid-{given.model}', measured, vars(given), device)}")


if __name__ == "__main__":
    main()
