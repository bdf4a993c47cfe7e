"""Prompts that the model's context does not hold, made to fit; what was done is noted in ``Inputs.fitted``.

A text loses its middle, as LongBench's own code has it: half of the limit from the front, half from the end,
before the chat template is put around it. Pages of a document are scaled to a common limit of pixels, the
largest with which all of them fit. Nothing is dropped without being noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvbench.checks import check_whole
from kvbench.errors import Unanswerable, UserError

FIT = "fit"  # page_pixels: as many as the context holds
CUT, PIXELS, SCALED = "cut_tokens", "page_pixels", "scaled_pages"  # keys of Inputs.fitted


def check(benchmark: Mapping[str, Any]) -> None:
    """Raise UserError for options of a benchmark that say nothing which can be done."""
    most, limit = benchmark.get("max_prompt_tokens"), benchmark.get("page_pixels")
    if most is not None:
        check_whole("benchmark.max_prompt_tokens", most, 2, "null keeps all that the context holds, or")
    if limit not in (None, FIT):
        check_whole("benchmark.page_pixels", limit, 1, f"{FIT} scales pages to the context, or")
    if benchmark.get("chat_template") not in (None, True, False):
        raise UserError(f"benchmark.chat_template is true or false, not {benchmark['chat_template']!r}.")


def text(
    adapter: Any, prompt: str, prepare: Callable[[str], Any], new_tokens: int, most: int | None = None
) -> Any:
    """``prepare(prompt)``, the middle of the prompt cut where it is too long; CUT counts the tokens lost.

    most: tokens of the prompt, without the chat template, that may stay; None: what the context leaves when
    ``new_tokens`` follow. Raises UserError when the template alone fills the context.
    """
    ids = adapter.ids(prompt)
    room = adapter.max_length - new_tokens
    around = prepare("").length - len(adapter.ids(""))
    most = min(most or room, room - around)
    while most > 1:
        half = most // 2
        cut = len(ids) - 2 * half if len(ids) > most else 0
        inputs = prepare(_ends(adapter, ids, half) if cut else prompt)
        if cut:
            inputs.fitted[CUT] = cut
        over = inputs.length - room
        if over <= 0:
            return inputs
        most = min(most, len(ids)) - over
    raise UserError(
        f"model {adapter.name} holds {adapter.max_length} tokens, which {new_tokens} new ones and its "
        "chat template fill: lower benchmark.max_new_tokens or raise model.max_length."
    )


def _ends(adapter: Any, ids: list[int], half: int) -> str:
    return adapter.text(ids[:half]) + adapter.text(ids[-half:])


def pages(adapter: Any, prompt: str, pictures: list, new_tokens: int, limit: int | str | None) -> Any:
    """The prompt with every page at no more than a common limit of pixels: PIXELS, and SCALED counts pages.

    limit: a number of pixels, or FIT: the model's own where all fit, else the largest with which they do.
    Raises UserError for a model whose pictures have no such limit, and for pages that no limit makes fit.
    """
    known = adapter.pixels if limit is not None and pictures else None
    if not pictures or (known is None and limit in (None, FIT)):
        return adapter.prepare(prompt, pictures)
    if known is None:
        raise UserError(f"model {adapter.name} has no limit of pixels: set benchmark.page_pixels={FIT}.")
    token, least, own = known
    sizes = [min(max(page.width * page.height, least), own) for page in pictures]
    room = adapter.max_length - new_tokens - len(adapter.ids(prompt))
    most = _common(sizes, room * token) if limit == FIT else int(limit)
    while True:
        if most < least:
            raise Unanswerable(
                f"{len(pictures)} pages do not fit the {adapter.max_length} tokens of {adapter.name} at "
                f"{least} pixels each: lower model.min_pixels, or raise model.max_length."
            )
        scaled = sum(size > most for size in sizes)
        inputs = adapter.prepare(prompt, pictures, max_pixels=most if scaled else None)
        if scaled:
            inputs.fitted |= {PIXELS: most, SCALED: scaled}
        over = inputs.length + new_tokens - adapter.max_length
        if over <= 0 or limit != FIT:
            return inputs
        room -= over
        most = _common(sizes, room * token)


def _common(sizes: Sequence[int], total: int) -> int:
    """The largest limit with which sizes, none above it, come to at most ``total``."""
    left = sorted(sizes)
    while left and left[0] * len(left) <= total:
        total -= left.pop(0)
    return max(sizes) if not left else max(total, 0) // len(left)


def sentences(name: str, fitted: Sequence[dict[str, int]]) -> list[str]:
    """What was done to a benchmark's prompts, for people to read under a table; one entry a prompt."""
    cut = [note[CUT] for note in fitted if CUT in note]
    limits = [note[PIXELS] for note in fitted if PIXELS in note]
    said = []
    if cut:
        said.append(
            f"{name}: {len(cut)} of {len(fitted)} prompts are longer than the context; of each, the middle "
            f"was cut, {_range(cut)} tokens."
        )
    if limits:
        said.append(
            f"{name}: pages of {len(limits)} of {len(fitted)} questions were scaled so that all fit the "
            f"context, to at most {_range(limits)} pixels a page (benchmark.page_pixels)."
        )
    return said


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
