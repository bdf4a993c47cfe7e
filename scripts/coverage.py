"""How often 95 % intervals hold the true difference, simulated: rules x designs x numbers of clusters.

    python scripts/coverage.py            # 1 000 made-up benchmarks a cell
    python scripts/coverage.py 10000 t    # more of them, one rule

All designs but the last two are of no difference: 100 minus the coverage is then how many stars chance gives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kvbench.analysis.resampling import METHODS, intervals

CLUSTERS = (5, 8, 10, 20, 40)


class Sets(NamedTuple):
    """Paired differences [n, sets] of made-up benchmarks, the cluster of each sample and the true mean."""

    values: np.ndarray
    clusters: np.ndarray
    mean: float = 0.0


Design = Callable[[np.random.Generator, int, int], Sets]


def answers(
    rng: np.random.Generator, pages: np.ndarray, sets: int, right: float, page: float, between: float
) -> Sets:
    """Right minus wrong of two methods, each right in a share ``right`` of the questions.

    ``page`` and ``between``: by how much pages differ in that share, and the two methods on a page (sd).
    """
    level = (right + page * rng.standard_normal((pages.max() + 1, sets)))[pages]
    apart = (between / 2 * rng.standard_normal((pages.max() + 1, sets)))[pages]
    first, second = (rng.random(level.shape) < np.clip(level + d, 0, 1) for d in (apart, -apart))
    return Sets(first.astype(float) - second, pages)


def binary(rng: np.random.Generator, clusters: int, sets: int) -> Sets:
    """Five questions a page, right or wrong."""
    return answers(rng, np.repeat(np.arange(clusters), 5), sets, 0.7, 0.2, 0.1)


def unequal(rng: np.random.Generator, clusters: int, sets: int) -> Sets:
    """As binary; a quarter of the pages has ten to twelve questions, the others one to three."""
    sizes = [1 + 9 * (page % 4 == 0) + page % 3 for page in range(clusters)]
    return answers(rng, np.repeat(np.arange(clusters), sizes), sets, 0.7, 0.2, 0.1)


def skewed(rng: np.random.Generator, clusters: int, sets: int) -> Sets:
    """Scores with a long tail (CIDEr, say), one a picture."""
    first, second = rng.exponential(1, (2, clusters, sets))
    return Sets(first - second, np.arange(clusters))


def near_ceiling(rng: np.random.Generator, clusters: int, sets: int) -> Sets:
    """As binary, 97 % right."""
    return answers(rng, np.repeat(np.arange(clusters), 5), sets, 0.97, 0.0, 0.02)


def loss_at_ceiling(rng: np.random.Generator, clusters: int, sets: int) -> Sets:
    """One method always right, the other in 95 %, more on some pages than on others."""
    pages = np.repeat(np.arange(clusters), 5)
    right = rng.random((len(pages), sets)) < rng.beta(9.5, 0.5, (clusters, sets))[pages]
    return Sets(right - 1.0, pages, -0.05)


def lopsided(rng: np.random.Generator, clusters: int, sets: int) -> Sets:
    """Many small losses and a few large gains that even out, one a picture."""
    return Sets(rng.exponential(1, (clusters, sets)) - 1, np.arange(clusters))


HELD: tuple[Design, ...] = (binary, unequal, skewed, near_ceiling)  # no difference
SHORT: tuple[Design, ...] = (loss_at_ceiling, lopsided)  # too few samples show the spread: no rule holds both


def coverage(method: str, design: Design, clusters: int, sets: int, resamples: int = 999) -> float:
    """Share of ``sets`` benchmarks whose 95 % interval holds the true mean."""
    found = design(np.random.default_rng(clusters), clusters, sets)
    low, high = intervals(found.values, clusters=found.clusters.tolist(), method=method, resamples=resamples)
    return float(((low <= found.mean + 1e-12) & (found.mean - 1e-12 <= high)).mean())


def main(words: list[str]) -> None:
    sets, methods = int(words[0]) if words else 1000, words[1:] or METHODS
    print(f"{'design':<16}{'rule':<12}" + "".join(f"{f'{m} clusters':>13}" for m in CLUSTERS))
    for design in HELD + SHORT:
        for method in methods:
            found = [coverage(method, design, clusters, sets) for clusters in CLUSTERS]
            shown = "".join(f"{100 * share:>13.1f}" for share in found)
            print(f"{design.__name__:<16}{method:<12}{shown}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
