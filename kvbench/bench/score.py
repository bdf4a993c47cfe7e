"""Scoring many cells of captions against lmms-eval's own time, figures equal; and paired intervals.

    kvbench bench score cells=49 samples=100 own=6

Captions are the references with words left out by chance. lmms-eval scores cells one by one, so its time
is measured on the first `--own` cells and stated per cell; `share_percent` compares per cell. `unequal`
counts figures that are not the same float.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from kvbench.bench import report, workload
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser


def captions(benchmark: Any, cells: int, samples: int, seed: int = 0) -> dict[str, dict[int, str]]:
    """Per cell and sample a caption: lmms-eval's first reference with some words gone."""
    from kvbench.benchmarks.replay import Replay, evaluate_task

    (metric,) = benchmark.caption_metrics
    blank = Replay({index: "" for index in range(samples)})
    _, logged = evaluate_task(benchmark.task, blank, range(samples), [])
    draw = random.Random(seed)
    known = [sample[metric]["answer"][0].split() for sample in logged]
    return {
        f"cell {cell}": {
            index: " ".join(word for word in words if draw.random() > 0.1 + 0.5 * cell / cells)
            for index, words in enumerate(known)
        }
        for cell in range(cells)
    }


def rows(benchmark: Any, cells: int, samples: int, own: int) -> list[dict[str, Any]]:
    """One row: all cells here, and the first `own` by lmms-eval."""
    (metric,) = benchmark.caption_metrics
    given = captions(benchmark, cells, samples)  # has imported lmms-eval's evaluator, for both alike
    start = time.perf_counter()
    scores = benchmark.task_scores(given, range(samples))
    ours = time.perf_counter() - start
    compared = dict(list(given.items())[:own])
    start = time.perf_counter()
    theirs = {name: benchmark.own_figures(answers, [metric])[metric] for name, answers in compared.items()}
    spent = time.perf_counter() - start
    return [
        {
            "metric": metric,
            "cells": cells,
            "captions": samples,
            "all_s": ours,
            "cell_s": ours / cells,
            "own_cells": len(compared),
            "own_cell_s": spent / len(compared),
            "share_percent": 100 * (ours / cells) / (spent / len(compared)),
            "unequal": sum(scores[name].metrics[metric] != figure for name, figure in theirs.items()),
        }
    ]


def interval_rows(cells: int, samples: int, resamples: int) -> list[dict[str, Any]]:
    """A row a rule: paired intervals of all cells at once, the drawing of the resamples included."""
    import numpy as np

    from kvbench.analysis import resampling

    values = np.random.default_rng(0).random((samples, cells)) - 0.5
    resampling.draws.cache_clear()
    found = []
    for method in ("t", "percentile"):
        start = time.perf_counter()
        resampling.intervals(values, resamples=resamples, method=method)
        spent = time.perf_counter() - start
        drawn = 0 if method == "t" else resamples
        found.append({"interval": method, "cells": cells, "samples": samples, "resamples": drawn, "s": spent})
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows as tables and write them to runs/bench/score.json."""
    parser = Parser(prog="kvbench bench score", description=__doc__.splitlines()[0])
    parser.add_argument("--benchmark", default="caption_mini")
    parser.add_argument("--cells", type=int, default=49)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--own", type=int, default=6, help="cells that lmms-eval scores as well")
    parser.add_argument("--bootstrap-samples", type=int, default=5000)
    parser.add_argument("--resamples", type=int, default=10_000)
    given = parser.known(sys.argv[1:] if arguments is None else arguments)
    if min(given.cells, given.samples, given.own, given.bootstrap_samples, given.resamples) < 1:
        raise UserError("every number of cells, samples and resamples must be at least 1.")
    from kvbench import benchmarks

    benchmark = benchmarks.load(workload.config("benchmark", given.benchmark))
    if len(benchmark.caption_metrics) != 1:
        raise UserError(f"{given.benchmark} has no caption metric: use --benchmark caption_mini or textcaps.")
    scored = rows(benchmark, given.cells, given.samples, given.own)
    resampled = interval_rows(given.cells, given.bootstrap_samples, given.resamples)
    report.show(scored)
    report.show(resampled)
    print(f"wrote {report.save('score', scored + resampled, vars(given))}")


if __name__ == "__main__":
    main()
