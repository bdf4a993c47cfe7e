"""Time of a whole run beyond the model's own forward passes.

    kvbench bench overhead benchmark=docqa_mini limit=10

Runs a job as `kvbench run` does, into an empty store, and counts from the first prompt to the last written
result. What lies outside of model.forward is told apart, each relative to the model's own time: the methods'
selection; the engine, which copies the kept entries of every branch and keeps the batch; and the harness,
all the rest: reading pictures, prompts, text, journal and results.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

from kvbench.bench import report
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser
from kvbench.running import run as generation

GRIDS = {
    "fullkv": ["method=fullkv"],
    "snapkv+bacon": ["method=snapkv+bacon", "budget=64"],
    "grid": ["experiment=table1"],
}


def rows(
    model: str, benchmark: str, limit: int, grids: dict[str, list[str]] | None = None
) -> list[dict[str, Any]]:
    """One row per set of cells: seconds in all, of the model, and the overhead relative to the model."""
    from kvbench.planning import compose, plan

    measured = []
    for name, overrides in (GRIDS if grids is None else grids).items():
        with tempfile.TemporaryDirectory() as folder, compose.session():
            words = [f"model={model}", f"benchmark={benchmark}", f"limit={limit}", f"store={folder}/store"]
            (job,) = plan.jobs([*overrides, *words], True)
            watch = _Stopwatch(generation.load_model(job.config["model"]))
            with watch, mock.patch.object(generation, "generate", watch.generate):
                outcome = generation.run_job(job, ["kvbench", "bench", "overhead"])
            total = time.perf_counter() - watch.start
            if outcome.missing:
                raise UserError(f"the run failed ({outcome.first_error}): there is nothing to measure.")
        parts = {"select": watch.laps["select"], "engine": watch.engine}
        parts["harness"] = total - watch.model - sum(parts.values())
        row = {"cells": name, "answers": outcome.done, "total_s": total, "model_s": watch.model}
        measured.append(row | {f"{part}_percent": 100 * s / watch.model for part, s in parts.items()})
    return measured


class _Stopwatch:
    """Inside the block: when the first prompt was prepared, and where the engine's time went."""

    def __init__(self, adapter: Any):
        self.adapter, self.start, self.model = adapter, 0.0, 0.0
        self.laps: Counter[str] = Counter()  # seconds in the engine's own stages
        self._generate = generation.generate

    @property
    def engine(self) -> float:
        """Seconds of prefill and decode outside of the model."""
        return self.laps["prefill"] + self.laps["decode"] - self.model

    def generate(self, *arguments: Any, **settings: Any) -> Any:
        """The runner's own `generate`, its stages added up."""
        seconds: dict[str, float] = {}
        answers = self._generate(*arguments, seconds=seconds, **settings)
        self.laps.update(seconds)
        return answers

    def __enter__(self) -> _Stopwatch:
        prepare = self.adapter.prepare

        def first_prepare(*arguments: Any) -> Any:
            self.start = self.start or time.perf_counter()
            return prepare(*arguments)

        self.adapter.prepare = first_prepare
        network = self.adapter.model
        self._hooks = [
            network.register_forward_pre_hook(lambda *_: self._enter()),
            network.register_forward_hook(lambda *_: self._leave()),
        ]
        return self

    def __exit__(self, *_: Any) -> None:
        del self.adapter.prepare  # the class's own is back
        for hook in self._hooks:
            hook.remove()

    def _enter(self) -> None:
        self._wait()
        self._entered = time.perf_counter()

    def _leave(self) -> None:
        self._wait()
        self.model += time.perf_counter() - self._entered

    def _wait(self) -> None:
        if self.adapter.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.adapter.device)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows as a table and write them to runs/bench/overhead.json."""
    parser = Parser(prog="kvbench bench overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--benchmark", default="docqa_mini")
    parser.add_argument("--limit", type=int, default=10, help="samples")
    given = parser.known(sys.argv[1:] if arguments is None else arguments)
    if given.limit < 1:
        raise UserError(f"--limit must be at least 1, not {given.limit}.")
    measured = rows(given.model, given.benchmark, given.limit)
    report.show(measured)
    print(f"wrote {report.save('overhead', measured, vars(given))}")


if __name__ == "__main__":
    main()
