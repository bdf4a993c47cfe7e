"""One sample through all methods: prefill once, select, decode together, cut at stop strings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kvbench import memory
from kvbench.engine.decode import decode
from kvbench.engine.paths import release
from kvbench.engine.prefill import EXTRAS, Prefill, prefill
from kvbench.engine.refresh import KeptSet, Plan, plan_of
from kvbench.errors import SetupError, Unanswerable, without_frames
from kvbench.methods.method import Method
from kvbench.methods.observation import Observation
from kvbench.methods.select import kept_mask, to_sets
from kvbench.store.trace import Trace


@dataclass
class Answer:
    """One branch's answer. `kept` holds the realised prompt entries per layer and KV head."""

    tokens: list[int]  # as generated, a stop token included
    text: str  # decoded without special tokens, cut at the first stop string, never stripped
    stopped: str  # "eos", "length" or "until"
    prompt_length: int
    kept: list[list[int]] = field(repr=False)
    trace: Trace | None = field(default=None, repr=False)  # when asked for
    positions: KeptSet | None = field(default=None, repr=False)  # kept, when asked for; None: all of them
    reasoning: str | None = None  # what a first stage generated, where there is one
    fitted: dict[str, int] = field(
        default_factory=dict
    )  # of Inputs: what was left out to make the prompt fit


@torch.inference_mode()
def generate(
    adapter,
    inputs,
    methods: list[Method],
    *,
    max_new_tokens: int,
    until: list[str] | None = None,
    seconds: dict[str, float] | None = None,
    trace: bool = False,
    positions: bool = False,
    max_branch_bytes: int | None = None,
    log: Callable[[str], None] = print,
    compiled: bool = False,
    cache: str = "auto",
    return_exceptions: bool = False,
) -> list[Answer | Exception]:
    """The answer of every method to one prompt (`inputs` of `adapter.prepare`), in the order of `methods`.

    until: strings that end an answer at their first occurrence. seconds: filled with the time of "prefill",
    "select" and "decode". trace: record drift, refreshes and overlap per step and layer in Answer.trace.
    positions: leave what each method keeps in Answer.positions. max_branch_bytes, log, compiled, cache: as
    in kvbench.engine.decode. return_exceptions: as in asyncio.gather: what made a method fail alone stands
    in its answer's place, else the first is raised. Raises UserError when prompt and answer exceed the
    model's context.
    """
    until = [s for s in until or [] if s]
    _check_length(adapter, inputs.length, max_new_tokens)
    clock = _Clock(adapter.model.device)
    prompt = _prefill(adapter, inputs, methods)
    clock.lap("prefill")
    found = _select_all(adapter, methods, prompt, trace)
    _raise_first(found, unless=return_exceptions)
    chosen = [branch for branch in found if isinstance(branch, _Branch)]
    clock.lap("select")
    traces: list[Trace] | None = [] if trace else None
    tokens = decode(
        adapter,
        prompt,
        [branch.kept for branch in chosen],
        max_new_tokens=max_new_tokens,
        stop_ids=adapter.stop_ids,
        finished=(lambda tokens: any(stop in adapter.text(tokens) for stop in until)) if until else None,
        plans=[branch.plan for branch in chosen],
        traces=traces,
        max_branch_bytes=max_branch_bytes,
        log=log,
        compiled=compiled,
        cache=cache,
    )
    clock.lap("decode")
    if seconds is not None:
        seconds.update(clock.laps)
    for number, (branch, answer) in enumerate(zip(chosen, tokens, strict=True)):
        if isinstance(answer, list):
            answer = _answer(adapter, answer, until, inputs.length, branch.counts, traces and traces[number])
            answer.positions = branch.kept if positions else None
        found[found.index(branch)] = answer
    _raise_first(found, unless=return_exceptions)
    return found


def _select_all(adapter, methods: list[Method], prompt: Prefill, trace: bool) -> list[_Branch | Exception]:
    observation = observe(prompt, head_scores=adapter.head_scores)
    return [_select(adapter, method, observation, trace) for method in methods]


def _check_length(adapter, length: int, new_tokens: int) -> None:
    if length + new_tokens > adapter.max_length:
        raise Unanswerable(
            f"a prompt of {length} tokens and {new_tokens} new ones exceed the {adapter.max_length} that "
            f"{adapter.name} can hold: shorten the prompt or lower max_new_tokens."
        )


def _raise_first(found: list, unless: bool) -> None:
    for outcome in () if unless else found:
        if isinstance(outcome, Exception):
            raise outcome


@dataclass(eq=False)
class _Branch:
    """What a method chose to keep of a prompt."""

    plan: Plan | None
    kept: KeptSet | None  # None: everything
    counts: list[list[int]]  # entries per layer and KV head


def _select(adapter, method: Method, observation: Observation, trace: bool) -> _Branch | Exception:
    """A method's selection, or what made it fail. Other methods of the sample do not depend on it."""
    try:
        plan = plan_of(method, observation.shape[2], adapter.head_dim, trace)
        mask = kept_mask(method, observation)
    except SetupError:
        raise
    except Exception as error:
        if memory.ran_out(error):
            memory.give_back()
        return without_frames(error)
    return _Branch(plan, None if method.full else to_sets(mask), mask.sum(-1).tolist())


def _prefill(adapter, inputs, methods: list[Method]) -> Prefill:
    """What all methods need; when memory runs out, again without what the compiled step kept of the last."""
    extras = frozenset().union(*(m.extras for m in methods)) & EXTRAS
    window = max((m.window for m in methods), default=1)
    try:
        return prefill(adapter, inputs, window=window, extras=extras)
    except (RuntimeError, MemoryError) as error:
        if not (memory.ran_out(error) and release(adapter)):
            raise
    memory.give_back()
    return prefill(adapter, inputs, window=window, extras=extras)


def observe(prompt: Prefill, head_scores=None) -> Observation:
    """What the methods see of a prefill."""
    return Observation(
        keys=prompt.key_stack,
        values=prompt.value_stack,
        window_queries=prompt.window_queries,
        scaling=prompt.scaling,
        visual_mask=prompt.visual_mask,
        attention_sums=prompt.attention_sums,
        head_scores=head_scores,
    )


def _answer(
    adapter, tokens: list[int], until: list[str], length: int, kept: list[list[int]], trace: Trace | None
) -> Answer:
    text = adapter.text(tokens)
    cut = min((at for stop in until if (at := text.find(stop)) >= 0), default=None)
    if cut is not None:
        return Answer(tokens, text[:cut], "until", length, kept, trace)
    ended = bool(tokens) and tokens[-1] in adapter.stop_ids
    return Answer(tokens, text, "eos" if ended else "length", length, kept, trace)


class _Clock:
    """Seconds between laps; waits for the device first, so that queued work counts where it belongs."""

    def __init__(self, device):
        self.device, self.laps, self.last = device, {}, time.perf_counter()

    def lap(self, name: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.laps[name] = now - self.last
        self.last = now
