"""CIDEr (Vedantam et al. 2015, with pycocoevalcap's clipping and length penalty) for many candidate sets.

pycocoevalcap works out the references' tf-idf vectors again for every set of candidates, which is most of
its time. Here they are worked out once. The arithmetic is the same, operation by operation, so the figures
are equal to the last digit; tests compare them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

N = 4  # longest n-gram
SIGMA = 6.0  # width of the length penalty, in words


@dataclass(frozen=True)
class _Vector:
    """tf-idf weights of a caption by n-gram, one mapping and norm for each n, and its length."""

    weights: list[dict[tuple[str, ...], float]]
    norms: list[float]
    length: int  # as pycocoevalcap counts it: bigrams


class References:
    """The reference captions of all images, tokenised, ready to be compared with."""

    def __init__(self, captions: Sequence[Sequence[str]]):
        """captions: per image one or more tokenised captions."""
        from pycocoevalcap.cider.cider_scorer import precook

        counts = [[precook(caption, N) for caption in image] for image in captions]
        self._frequency = Counter(ngram for image in counts for ngram in set().union(*image))
        self._log_images = float(np.log(float(len(captions))))
        # numpy's scalar log, as in pycocoevalcap: math.log may differ in the last digit.
        self._idf = {
            seen: self._log_images - float(np.log(max(1.0, float(seen))))
            for seen in {0, *self._frequency.values()}
        }
        self._images = [[self._vector(caption) for caption in image] for image in counts]

    def scores(self, candidates: Sequence[str]) -> list[float]:
        """CIDEr of one tokenised candidate per image; the mean is the corpus figure."""
        from pycocoevalcap.cider.cider_scorer import precook

        return [
            self._score(self._vector(precook(candidate, N)), image)
            for candidate, image in zip(candidates, self._images, strict=True)
        ]

    def _vector(self, counts: dict[tuple[str, ...], int]) -> _Vector:
        weights: list[dict[tuple[str, ...], float]] = [{} for _ in range(N)]
        squares, length = [0.0] * N, 0
        for ngram, count in counts.items():
            n = len(ngram) - 1
            weight = float(count) * self._idf[self._frequency[ngram]]
            weights[n][ngram] = weight
            squares[n] += pow(weight, 2)
            length += count if n == 1 else 0
        return _Vector(weights, [math.sqrt(square) for square in squares], length)

    @staticmethod
    def _score(candidate: _Vector, references: list[_Vector]) -> float:
        total = np.zeros(N)
        for reference in references:
            delta = float(candidate.length - reference.length)
            penalty = np.e ** (-(delta**2) / (2 * SIGMA**2))
            for n in range(N):
                shared, held = 0.0, reference.weights[n]
                for ngram, weight in candidate.weights[n].items():
                    other = held.get(ngram)
                    if other is not None:
                        shared += min(weight, other) * other
                if candidate.norms[n] and reference.norms[n]:
                    shared /= candidate.norms[n] * reference.norms[n]
                total[n] += shared * penalty
        return float(np.mean(total) / len(references) * 10.0)
