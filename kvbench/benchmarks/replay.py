"""Score stored answers: an lmms-eval model that returns what was generated earlier."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from lmms_eval.api.model import lmms

from kvbench.benchmarks.loading import quiet


class Replay(lmms):
    """Returns the stored answers, ``answers`` by document index, to exactly these documents."""

    def __init__(self, answers: Mapping[int, str]) -> None:
        super().__init__()
        self.answers = [answers[index] for index in sorted(answers)]

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Answers in the order of the requests. IndexError for a document without: nothing is made up."""
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


def spellings(task: Any, metric: str, name: str) -> list[str]:
    """What a figure may be called: ``exact_match``, ``exact_match,flexible-extract`` or both.

    ``name`` is one of the task's filters, through which it hands answers to its metrics; most tasks have one
    that is called ``none``. The short name is that filter's, or that of a task's only filter.
    """
    long = [] if name == "none" else [f"{metric},{name}"]
    return [metric, *long] if name == "none" or len(task._filters) == 1 else long


def known_metrics(task: Any) -> dict[str, str]:
    """Every name of a figure of the task, and the metric whose aggregation it is."""
    return {
        spelt: metric
        for metric in task.aggregation()
        for each in task._filters
        for spelt in spellings(task, metric, each.name)
    }


@contextlib.contextmanager
def selected(task: Any, indices: Sequence[int]) -> Iterator[None]:
    """Let the task hold the documents at ``indices`` alone."""
    split = task.config.test_split or task.config.validation_split
    parts = [(part, part[split]) for part in (task.dataset, task.dataset_no_image)]
    for part, whole in parts:
        part[split] = whole.select(indices)
    try:
        yield
    finally:
        for part, whole in parts:
            part[split] = whole


def evaluate_task(
    task: Any, model: lmms, indices: Sequence[int], metrics: list[str] | None = None
) -> tuple[dict, list[dict]]:
    """Let lmms-eval run ``model`` on the documents of ``task`` at ``indices``, which rise.

    metrics: aggregate these alone; None for the task's own list. Returns (figures by metric,
    logged samples in document order, one a document), both under the names of ``known_metrics``. Seeds and a
    single worker make random fallbacks repeatable.
    """
    with quiet(), single_process(), templates_compiled_once(), selected(task, indices):
        from lmms_eval.evaluator import evaluate

        own = task._aggregation_list
        if metrics is not None:
            wanted = {known_metrics(task).get(name, name) for name in metrics}
            task._aggregation_list = {name: function for name, function in own.items() if name in wanted}
        random.seed(0)
        np.random.seed(1234)
        try:
            # The output path keeps lmms-eval's submission files out of the working directory.
            with tempfile.TemporaryDirectory() as folder:
                result = evaluate(
                    model,
                    {task.config.task: task},
                    bootstrap_iters=0,
                    log_samples=True,
                    # "torchrun" only skips the creation of an Accelerator, which one process does not need.
                    distributed_executor_backend="torchrun",
                    cli_args=Namespace(output_path=folder, process_with_media=False),
                    process_docs_parallel=1,
                )
        finally:
            task._aggregation_list = own
    found = result["results"][task.config.task]
    figures = {}
    logged: dict[int, dict] = {}
    parts = np.array_split(np.arange(len(result["samples"][task.config.task])), len(task._filters))
    for each, part in zip(task._filters, parts, strict=True):  # lmms-eval logs one filter after the other
        names = {metric: spellings(task, metric, each.name) for metric in own}
        for metric, spelt in names.items():
            value = found.get(f"{metric},{each.name}")
            if isinstance(value, (int, float)):
                figures |= dict.fromkeys(spelt, float(value))
        for sample in (result["samples"][task.config.task][place] for place in part):
            values = {
                name: sample[metric] for metric, spelt in names.items() if metric in sample for name in spelt
            }
            rest = {key: value for key, value in sample.items() if key not in own}
            logged.setdefault(sample["doc_id"], rest).update(values)
    return figures, [{**logged[place], "doc_id": indices[place]} for place in sorted(logged)]
