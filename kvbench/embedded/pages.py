"""What stands on a page: content, questions, captions and descriptions, deterministic by seed.

A page is a grid of tiles. A tile shows one token of the page vocabulary or nothing. Every field of a page
knows the tiles of its label and of its value, so that an analysis can ask which cache entries an answer
needed.

Training and test pages differ in their seeds, in their values (numbers, dates, codes and words are split into
two disjoint sets) and in a fifth of the words, which training pages never show.
"""

from __future__ import annotations

import random

from kvbench.embedded.kinds import MAKERS
from kvbench.embedded.layout import Content
from kvbench.embedded.page import DOCUMENTS, HELD_OUT, KINDS, LEAST_TILES, Field, Page, Question, Tile

__all__ = ["DOCUMENTS", "HELD_OUT", "KINDS", "Tile", "Field", "Page", "Question", "make"]


def make(kind: str, seed: int, *, test: bool, dense: bool = True) -> Page:
    """A page by kind and seed.

    Args:
        kind: one of ``KINDS``.
        seed: any integer; test and training pages of one seed have nothing to do with each other.
        test: draw from the test values and all words, else from the training values and words.
        dense: as many fields as fit (for questions), else about twenty in one column (for descriptions).
    """
    name = f"{'test' if test else 'train'}-{kind}-{'dense' if dense else 'light'}-{seed}"
    rng = random.Random(name)
    page = MAKERS[kind](rng, Content(rng, test), dense)
    page.rows = max(
        page.rows, -(-LEAST_TILES // page.columns)
    )  # blank foot, so that prompts have 250 tokens or more
    page.seed = name
    return page
