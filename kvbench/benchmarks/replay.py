"""Score stored answers: an lmms-eval model that returns what was generated earlier."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from lmms_eval.api.model import lmms

from kvbench.benchmarks.loading import quiet


class Replay(lmms):
    """Returns the stored answer of each document; ``answers`` by document index."""

    def __init__(self, answers: Mapping[int, str]) -> None:
        super().__init__()
        self.answers = answers

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Answers in the order of the requests. KeyError for a document without one: nothing is made up."""
        return [self.answers[request.args[3]] for request in requests]

    def loglikelihood(self, requests: list[Any]) -> list[Any]:
        raise NotImplementedError("stored answers have no likelihoods")

    def generate_until_multi_round(self, requests: list[Any]) -> list[str]:
        raise NotImplementedError("stored answers are of one round")

    def clean(self) -> None:
        """Nothing to free; the base class would delete modules."""


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Hide a launcher's ranks: stored answers are scored whole, by one process, whatever started it."""
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


@contextlib.contextmanager
def templates_compiled_once() -> Iterator[None]:
    """lmms-eval compiles a task's Jinja template again for every document; here each is compiled once."""
    from lmms_eval.utils import env

    own = env.from_string
    env.from_string = functools.cache(own)
    try:
        yield
    finally:
        env.from_string = own


def evaluate_task(
    task: Any, model: lmms, limit: int, metrics: list[str] | None = None
) -> tuple[dict, list[dict]]:
    """Let lmms-eval run ``model`` on the first ``limit`` documents of ``task``.

    metrics: aggregate these alone; None for the task's own list. Returns (figures by metric,
    logged samples in document order). Seeds and a single worker make random fallbacks repeatable.
    """
    with quiet(), single_process(), templates_compiled_once():
        from lmms_eval.evaluator import evaluate

        own = task._aggregation_list
        if metrics is not None:
            task._aggregation_list = {name: function for name, function in own.items() if name in metrics}
        random.seed(0)
        np.random.seed(1234)
        try:
            # The output path keeps lmms-eval's submission files out of the working directory.
            with tempfile.TemporaryDirectory() as folder:
                result = evaluate(
                    model,
                    {task.config.task: task},
                    limit=limit,
                    bootstrap_iters=0,
                    log_samples=True,
                    # "torchrun" only skips the creation of an Accelerator, which one process does not need.
                    distributed_executor_backend="torchrun",
                    cli_args=Namespace(output_path=folder, process_with_media=False),
                    process_docs_parallel=1,
                )
        finally:
            task._aggregation_list = own
    figures = {
        key.removesuffix(",none"): float(value)
        for key, value in result["results"][task.config.task].items()
        if key.endswith(",none") and "_stderr" not in key and isinstance(value, (int, float))
    }
    samples = sorted(result["samples"][task.config.task], key=lambda sample: sample["doc_id"])
    return figures, samples
