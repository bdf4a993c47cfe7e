"""Time of each method's selection against the prompt length, and its share of the prefill.

    kvbench bench select model=smollm2 lengths=512,1024,2048

A method alone includes the window attention and key statistics that it needs. The row `together` selects
for all methods of one sample, where those are computed once: its share of the prefill is what a grid pays.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvbench.bench import report, workload
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser


def rows(
    model: Any,
    length: int,
    *,
    names: Sequence[str] = workload.METHODS,
    budgets: Sequence[int] = (64,),
    window: int = 32,
    repeats: int = 3,
) -> list[dict[str, Any]]:
    """One row per method and one for all together; medians over `repeats`."""
    from kvbench import engine
    from kvbench.engine.generate import observe
    from kvbench.methods.select import kept_mask, to_sets

    inputs = workload.text_prompt(model, length)
    prompts = []

    def timed(work: Callable[[], Any]) -> float:
        _wait(model.device)
        start = time.perf_counter()
        work()
        _wait(model.device)
        return time.perf_counter() - start

    def prefill() -> None:
        prompts[:] = [engine.prefill(model, inputs, window=window)]

    def select(methods: Sequence[Any]) -> None:
        observation = observe(prompts[0], head_scores=model.head_scores)
        for method in methods:
            to_sets(kept_mask(method, observation))

    asked = [(name, workload.methods([name], budgets, window)) for name in names]
    asked.append(("together", workload.methods(names, budgets, window)))
    seconds: dict[str, list[float]] = {name: [] for name, _ in asked}
    whole = []
    for repeat in range(repeats + 1):  # the first turn warms up
        spent = timed(prefill)
        turns = [(name, timed(lambda methods=methods: select(methods))) for name, methods in asked]
        if repeat:
            whole.append(spent)
            for name, value in turns:
                seconds[name].append(value)
    prefill_s = statistics.median(whole)
    return [
        {
            "method": name,
            "tokens": length,
            "cells": len(methods),
            "select_ms": 1000 * statistics.median(seconds[name]),
            "prefill_ms": 1000 * prefill_s,
            "share_percent": 100 * statistics.median(seconds[name]) / prefill_s,
        }
        for name, methods in asked
    ]


def _wait(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows as a table and write them to runs/bench/select.json."""
    parser = Parser(prog="kvbench bench select", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the model")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048], help="prompt tokens")
    parser.add_argument("--budgets", type=int, nargs="+", default=[64])
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.known(sys.argv[1:] if arguments is None else arguments)
    if min(*given.lengths, given.repeats) < 1:
        raise UserError("--lengths and --repeats must be at least 1.")
    model = workload.adapter(given.model, given.set)
    options = {"budgets": given.budgets, "window": given.window, "repeats": given.repeats}
    measured = [row for length in given.lengths for row in rows(model, length, **options)]
    report.show(measured)
    print(f"wrote {report.save('select', measured, vars(given), str(model.device))}")


if __name__ == "__main__":
    main()
