"""Two-stage chain of thought: reason over the image, then answer given that reasoning (BACON, appendix C.4).

Every method compresses the prompt of each stage. The methods share the prefill of the first stage; in the
second each has its own reasoning in the prompt, so only those that reasoned alike share one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def answers(
    ask: Callable[..., list[Any]],
    adapter: Any,
    benchmark: Any,
    sample: Any,
    pictures: list[Any],
    methods: list[Any],
) -> list[Any]:
    """One answer a method to a sample; its first stage's text is in ``reasoning`` where there are two.

    ``ask(inputs, methods, **settings)`` answers one prompt with every method; one that fails has its
    exception in its place, and is asked no more. What an answer says of its prompt and cache is the last
    stage's; ``fitted`` says what of that prompt was left out to make it fit.
    """
    if sample.then is None:
        inputs = benchmark.prepare(adapter, sample.text, pictures)
        return _noted(ask(inputs, methods), inputs)
    longest = benchmark.reasoning_tokens
    first = benchmark.prepare(adapter, sample.text, pictures, longest)
    reasons = ask(first, methods, max_new_tokens=longest, until=[], trace=False)
    alike: dict[str, list[int]] = {}
    found: list[Any] = list(reasons)
    for number, reason in enumerate(reasons):
        if not isinstance(reason, Exception):
            alike.setdefault(reason.text, []).append(number)
    for reasoning, numbers in alike.items():
        last = benchmark.prepare(adapter, sample.final(reasoning), pictures)
        given = _noted(ask(last, [methods[n] for n in numbers]), last)
        for number, answer in zip(numbers, given, strict=True):
            if not isinstance(answer, Exception):
                answer.reasoning = reasoning
            found[number] = answer
    return found


def _noted(answers: list[Any], inputs: Any) -> list[Any]:
    for answer in answers:
        if not isinstance(answer, Exception):
            answer.fitted = inputs.fitted
    return answers
