"""Training sequences for the adapter: one page, many questions.

A sequence holds the page once and several segments (prompt and answer) behind it. A block mask lets each
segment see the page and itself only, and its positions go on from the page's end, so that every segment is
trained exactly as if it stood behind the page alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.embedded import prompt
from kvbench.embedded import vocabulary as V
from kvbench.embedded.pages import DOCUMENTS, Page, make


@dataclass
class Lesson:
    """Token ids [L], positions [L], mask [L, L] (True = sees); where the next token is learnt, and which."""

    ids: Tensor
    positions: Tensor
    mask: Tensor
    where: Tensor
    targets: Tensor
    segments: list[tuple[str, int, int]]  # (task, first, last + 1) into ``where``


def task_of(kind: str) -> str:
    """The question task a kind of page is asked with."""
    return "docvqa" if kind in DOCUMENTS else "textvqa" if kind == "scene" else "chartqa"


def page_ids(words, page: Page) -> list[int]:
    """What the language model reads of a page: the opening and one token per tile."""
    table = V.token_ids(words)
    return [*prompt.opening(words), *(table[c] for c in page.classes())]


def pack(words, page: Page, pairs: list[tuple[str, str, str]]) -> Lesson:
    """A page with its (task, question, answer) triples."""
    ids = page_ids(words, page)
    prefix = len(ids)
    end = prompt.special(words, prompt.END)
    positions = list(range(prefix))
    where, targets, segments, bounds = [], [], [], []
    for task, question, answer in pairs:
        asked = prompt.closing(words, prompt.TASKS[task](question))
        said = [*prompt.plain(words, answer), end]
        first = len(ids)
        ids += asked + said[:-1]  # the end is a target only
        positions += range(prefix, prefix + len(asked) + len(said) - 1)
        segments.append((task, len(where), len(where) + len(said)))
        where += range(first + len(asked) - 1, first + len(asked) + len(said) - 1)
        targets += said
        bounds.append((first, len(ids)))
    block = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    for first, last in bounds:
        block[first:last, prefix:first] = False
    return Lesson(
        torch.tensor(ids),
        torch.tensor(positions),
        block,
        torch.tensor(where),
        torch.tensor(targets),
        segments,
    )


#: How often each kind is drawn.
_MIX = (("receipt", 2), ("form", 3), ("table", 2), ("notice", 2), ("scene", 3), ("chart", 3))


def draw_lesson(
    words, seed: int, *, test: bool = False, kind: str | None = None, light: bool | None = None
) -> Lesson:
    """The lesson of a seed: a random page, some of its questions, its caption, at times its description."""
    rng = random.Random(f"lesson-{test}-{seed}")
    drawn = rng.choices([k for k, _ in _MIX], [w for _, w in _MIX])[0]
    kind = kind or drawn
    slim = rng.random() < 0.3
    light = slim if light is None else light
    page = make(kind, seed, test=test, dense=not light)
    task = task_of(kind)
    asked = rng.sample(page.questions, min(4 if light else 12, len(page.questions)))
    pairs = [(task, q.question, q.answer) for q in asked]
    pairs.append(("textcaps", "", page.caption))
    if light:
        pairs.append(("detailcaps", "", page.description))
    return pack(words, page, pairs)
