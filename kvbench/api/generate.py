"""Answers of many methods and budgets to one prompt, from one prefill."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvbench.api.answers import Answered, Answers
from kvbench.api.model import Model
from kvbench.errors import UserError

Spec = str | Mapping[str, Any]
_CALL = re.compile(r"([\w+.-]+)(?:\((.*)\))?")


def generate(
    model: Model,
    prompt: Any,
    images: Sequence[Any] = (),
    *,
    methods: Sequence[Spec] = ("fullkv", "snapkv"),
    budgets: Sequence[int] = (128,),
    max_new_tokens: int = 64,
    until: Sequence[str] = (),
    refresh: str | Mapping[str, Any] | None = None,
    window: int | None = None,
) -> Answers | Iterator[Answers]:
    """What every method answers at every budget; the prompt is read once for all.

    prompt: a text, with its pictures in ``images``; or an iterable of texts or (text, images), for which an
    iterator of Answers with a progress bar is returned. methods: names as "snapkv+bacon", with options as
    "snapkv+bacon(gamma=0.5)" or {"method": "snapkv+bacon", "gamma": 0.5}. budgets: entries per KV head,
    window included; what keeps everything has none. refresh: re-selection while decoding for
    all methods, "rcr" or {"name": "rcr", "eta": 0.1}. window: queries of the observation window (default:
    the model's, else the score's). Raises UserError for a method, option or budget that cannot be.
    """
    chosen = _chosen(methods, budgets, refresh, window or model.window)
    settings = {"max_new_tokens": max_new_tokens, "until": list(until)}
    if isinstance(prompt, str):
        return _answers(model, prompt, list(images), chosen, settings)
    if images:
        raise UserError("several prompts bring their own pictures: give (text, images) pairs.")
    return _all(model, prompt, chosen, settings)


def _all(model: Model, prompts: Iterable[Any], chosen: Any, settings: dict[str, Any]) -> Iterator[Answers]:
    from tqdm.auto import tqdm

    for prompt in tqdm(prompts, desc=model.name):
        text, images = (prompt, []) if isinstance(prompt, str) else prompt
        yield _answers(model, text, list(images), chosen, settings)


def _answers(model: Model, text: str, images: list, chosen: Any, settings: dict[str, Any]) -> Answers:
    from kvbench.engine.generate import generate as run

    inputs = model.adapter.prepare(text, images)
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    built = [method for _, _, method in chosen]
    found = run(model.adapter, inputs, built, seconds=seconds, positions=True, **settings)
    seconds["all"] = time.perf_counter() - start
    cells = {
        (label, budget): Answered(a.text, a.tokens, a.positions, a.kept, a.stopped, seconds)
        for (label, budget, _), a in zip(chosen, found, strict=True)
    }
    grids = model.adapter.visual_grids(images) if images else None
    return Answers(text, images, cells, inputs.visual_mask, grids)


def _chosen(
    methods: Sequence[Spec], budgets: Sequence[int], refresh: Any, window: int | None
) -> list[tuple[str, int | None, Any]]:
    """(label, budget, method) of every cell, each once."""
    if isinstance(methods, (str, Mapping)):
        methods = [methods]
    if isinstance(budgets, int):
        budgets = [budgets]
    found: dict[tuple[str, int | None], Any] = {}
    for given in methods:
        label, name, options = _parsed(given)
        for budget in (None,) if name == "fullkv" else budgets:
            found[label, budget] = _built(name, options, budget, refresh, window)
    if not found:
        raise UserError("name at least one method and one budget.")
    return [(label, budget, method) for (label, budget), method in found.items()]


def _parsed(given: Spec) -> tuple[str, str, dict[str, Any]]:
    """Label, name and options of a method."""
    if isinstance(given, Mapping):
        options = dict(given)
        name = options.pop("method", None) or options.pop("name", "")
        shown = ", ".join(f"{key}={value}" for key, value in options.items())
        return (f"{name}({shown})" if shown else name), name, options
    match = _CALL.fullmatch(given.strip())
    if match is None:
        raise UserError(f"cannot read the method {given!r}: write it as snapkv+bacon(gamma=0.5).")
    try:
        call = ast.parse(f"_({match[2] or ''})", mode="eval").body
        options = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        if call.args or None in options:
            raise ValueError
    except (SyntaxError, ValueError) as error:
        raise UserError(f"cannot read the options of {given!r}: write NAME=VALUE, NAME=VALUE.") from error
    return given.strip(), match[1], options


def _built(name: str, options: dict[str, Any], budget: int | None, refresh: Any, window: int | None) -> Any:
    from kvbench.methods import build, parse, plugins, registry
    from kvbench.methods.select import _route  # whose source names cells, so it gets no other name

    plugins.installed()
    if (parts := parse(name)) is None:
        if options:
            raise UserError("fullkv keeps everything and has no options.")
        return build({"name": name}, None)
    options = dict(options)
    usual = registry.lookup("score", parts[1]).default_window
    own = usual if usual != registry.USUAL_WINDOW else window
    spec = {"name": name, "window": options.pop("window", None) or own, **_route(parts, options, {}, {})}
    if refresh is not None:
        spec["refresh"] = {"name": refresh} if isinstance(refresh, str) else dict(refresh)
    return build(spec, budget)
