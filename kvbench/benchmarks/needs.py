"""What a benchmark needs beside its data, and whether this machine has it. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_LEXICON = "oewn:2024"  # the one that pywsd reads


def _java(name: str) -> str | None:
    if shutil.which("java"):
        return None
    return f"benchmark {name} needs Java for its caption metrics: install a Java runtime."


def _wordnet(name: str) -> str | None:
    if importlib.util.find_spec("pywsd") is None:
        return f'benchmark {name} needs pywsd for WUPS: pip install "kvbench[nextqa]".'
    import nltk

    for resource in ("corpora/wordnet", "taggers/averaged_perceptron_tagger_eng", "tokenizers/punkt_tab"):
        try:
            nltk.data.find(f"{resource}.zip" if resource == "corpora/wordnet" else resource)
        except LookupError:
            word = resource.split("/")[1]
            return f"benchmark {name} needs nltk's {word} for WUPS: run `python -m nltk.downloader {word}`."
    import wn

    if not any(lexicon.specifier() == _LEXICON for lexicon in wn.lexicons()):
        return f"benchmark {name} needs pywsd's WordNet for WUPS: run `python -m wn download {_LEXICON}`."
    return None


def _video(name: str) -> str | None:
    if importlib.util.find_spec("av"):
        return None
    return f'benchmark {name} needs a video reader: pip install "av<16".'


def _lm_eval(name: str) -> str | None:
    lacking = [p for p in ("lm_eval", "jieba", "fuzzywuzzy", "rouge") if importlib.util.find_spec(p) is None]
    return f'benchmark {name} needs {lacking[0]}: pip install "kvbench[longbench]".' if lacking else None


CHECKS: dict[str, Callable[[str], str | None]] = {
    "java": _java,
    "wordnet": _wordnet,
    "video": _video,
    "lm_eval": _lm_eval,
}


def names(cfg: Mapping[str, Any]) -> list[str]:
    """The needs of a benchmark: those it lists, and what its kind implies."""
    implied = ["video"] * bool(cfg.get("video_column")) + ["lm_eval"] * (cfg.get("kind") == "longbench")
    return [*(cfg.get("needs") or []), *implied]


def missing(cfg: Mapping[str, Any], only: Sequence[str] | None = None) -> list[str]:
    """One sentence for each need that is not met."""
    found = [CHECKS[need](str(cfg["name"])) for need in names(cfg) if only is None or need in only]
    return [sentence for sentence in found if sentence]
