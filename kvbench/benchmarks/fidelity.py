"""How near an answer is to the same model's uncompressed answer; needs no reference text and no task.

ROUGE-L is the F-measure of the longest common subsequence, as in the papers on long answers (fidelity is
"ROUGE-L against the uncompressed output"); computed with rouge-score, without stemming: a stemmer
would forgive word forms that the uncompressed model did not write. Its own words are of a to z and 0 to 9
alone, which leaves nothing of other scripts; here they are Unicode's, and equal to its own in ASCII texts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

ROUGE = "fidelity_rougeL"
AGREEMENT = "answer_agreement"
DIVERGENCE = "first_divergence"
VERSION = 2  # raise when the meaning of a value changes; 1: words of ASCII letters and digits alone

# Scripts that put no blanks between words: each of their letters is a word, with the marks that belong to it.
_UNSPACED = "".join(
    rf"\p{{{name}}}"
    for name in ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Yi")
)


@lru_cache(maxsize=1)
def _pattern() -> Any:
    import regex

    mark = r"[\p{M}\u200c\u200d]*"
    return regex.compile(
        rf"[{_UNSPACED}&&[\p{{L}}\p{{N}}]]{mark}|(?:[\p{{L}}\p{{N}}--[{_UNSPACED}]]{mark})+", regex.V1
    )


def words(text: str) -> list[str]:
    """Lower-case words of letters, digits and their marks, in any script."""
    return _pattern().findall(unicodedata.normalize("NFC", text).lower())


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import Tokenizer

    class Words(Tokenizer):
        def tokenize(self, text: str) -> list[str]:
            return words(text)

    return RougeScorer(["rougeL"], tokenizer=Words())


def rouge_l(answer: str, reference: str) -> float:
    """ROUGE-L F-measure in [0, 1]. Two equal texts are 1 even when they hold no word at all."""
    if answer == reference:
        return 1.0  # rouge-score gives 0 for two empty (or wordless) texts, yet nothing was lost
    return float(_scorer().score(reference, answer)["rougeL"].fmeasure)


def first_divergence(tokens: Sequence[int], reference: Sequence[int]) -> int:
    """Generated tokens before the first that differs.

    Equal answers count in full: their length is then a lower bound of the true step.
    """
    for step, (ours, theirs) in enumerate(zip(tokens, reference, strict=False)):
        if ours != theirs:
            return step
    return min(len(tokens), len(reference))


def fidelity(
    answers: Mapping[int, str],
    reference: Mapping[int, str],
    tokens: Mapping[int, Sequence[int]] | None = None,
    reference_tokens: Mapping[int, Sequence[int]] | None = None,
) -> dict[str, dict[int, float]]:
    """Per-sample values by metric: ROUGE-L, equality of the texts and, given tokens, first divergence."""
    indices = sorted(answers)
    values = {
        ROUGE: {index: rouge_l(answers[index], reference[index]) for index in indices},
        AGREEMENT: {index: float(answers[index] == reference[index]) for index in indices},
    }
    if tokens is not None and reference_tokens is not None:
        values[DIVERGENCE] = {
            index: float(first_divergence(tokens[index], reference_tokens[index])) for index in indices
        }
    return values
