"""Let lmms-eval drive the model itself, without a store in between.

For tests and for a second opinion: the figures equal those of replayed answers to the last digit.

    figures, samples = drive(benchmark, adapter, method, range(5))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmms_eval.api.model import lmms

from kvbench.errors import UserError

if TYPE_CHECKING:
    from kvbench.benchmarks.lmms import LmmsBenchmark


class Direct(lmms):
    """An adapter and one method behind lmms-eval's model interface.

    Pictures go to the model as they are (no re-encoding) and an error is an error: nothing becomes "".
    """

    def __init__(self, benchmark: LmmsBenchmark, adapter: Any, method: Any) -> None:
        super().__init__()
        self.benchmark = benchmark
        self.adapter = adapter
        self.method = method

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Greedy answers, one prompt at a time, under the task's own token limit and ``until``."""
        from kvbench.engine.generate import generate

        answers = []
        for request in requests:
            text, options, doc_to_visual, doc_id, task, split = request.args
            images = doc_to_visual(self.task_dict[task][split][doc_id])
            inputs = self.benchmark.prepare(self.adapter, text, images)
            (answer,) = generate(
                self.adapter,
                inputs,
                [self.method],
                max_new_tokens=options["max_new_tokens"],
                until=options["until"],
            )
            answers.append(answer.text)
        return answers

    def loglikelihood(self, requests: list[Any]) -> list[Any]:
        raise NotImplementedError("compression is measured on generated answers")

    def generate_until_multi_round(self, requests: list[Any]) -> list[str]:
        raise NotImplementedError("prompts of several rounds are not supported")

    def clean(self) -> None:
        """Keep the model: the base class deletes its modules."""


def drive(
    benchmark: LmmsBenchmark,
    adapter: Any,
    method: Any,
    indices: Sequence[int],
    metrics: list[str] | None = None,
) -> tuple[dict[str, float], list[dict]]:
    """lmms-eval's figures and logged samples when it drives the model itself on these samples.

    metrics: aggregate these (those of captions start Java); None for all configured ones but the captions'.
    """
    from kvbench.benchmarks.replay import evaluate_task

    if benchmark.reasoning_tokens:
        raise UserError("lmms-eval asks one prompt a sample: choose a prompt of one stage.")
    model = Direct(benchmark, adapter, method)
    model.task_dict[benchmark.task.config.task] = benchmark.task.dataset
    return evaluate_task(
        benchmark.task, model, indices, benchmark.plain_metrics if metrics is None else metrics
    )
