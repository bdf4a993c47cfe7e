"""The interface of a benchmark and the values that pass through it."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvbench.errors import UserError

if TYPE_CHECKING:
    from PIL import Image


REASONING = "{reasoning}"  # in the prompt of a second stage: here goes what the first one generated


@dataclass(frozen=True)
class Sample:
    """One question.

    ``id`` is the data set's own identifier, ``index`` the position in the data set; together they are
    the join key (lmms-eval's ``doc_hash`` is the same for every document and joins nothing).
    ``images`` decodes the pictures when called, so a list of samples costs no memory. ``then`` is the prompt
    of a second stage, with ``REASONING`` for what the first one generates; None: there is one alone.
    """

    id: str
    index: int
    text: str
    images: Callable[[], list[Image.Image]] = field(compare=False, repr=False)
    then: str | None = None

    def final(self, reasoning: str | None) -> str:
        """The text of the prompt that the scored answer answers."""
        return self.text if self.then is None else self.then.replace(REASONING, reasoning or "")


@dataclass
class Scores:
    """The figures of one cell.

    ``metrics`` holds the figure of the whole cell, ``per_sample`` the contributions by sample index,
    whose mean is that figure. A metric without per-sample values cannot be resampled.
    ``warnings`` says in full sentences what is missing and why. ``clusters`` names, by sample index, the
    page or picture a question is about: questions about one picture are not independent.
    """

    n: int
    metrics: dict[str, float] = field(default_factory=dict)
    per_sample: dict[str, Mapping[int, float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    clusters: dict[int, str] = field(default_factory=dict)
    failed: bool = False  # something broke that may work next time: score again then

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, per-sample ones in columns; NaN becomes null, as JSON has none."""
        from kvbench.benchmarks.series import pack

        return {
            "n": self.n,
            "metrics": {metric: _json(value) for metric, value in self.metrics.items()},
            "per_sample": {
                metric: pack({index: _json(value) for index, value in values.items()})
                for metric, values in self.per_sample.items()
            },
            "warnings": list(self.warnings),
            "clusters": pack(self.clusters),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scores:
        """The inverse of ``to_dict``; per-sample values are arrays that read like the dicts."""
        import numpy as np

        from kvbench.benchmarks.series import Series, unpack

        per_sample = {}
        for metric, columns in data["per_sample"].items():
            index, values = unpack(columns)
            per_sample[metric] = Series(np.array(index, np.int64), np.array(values, np.float64))
        return cls(
            n=int(data["n"]),
            metrics={metric: _number(value) for metric, value in data["metrics"].items()},
            per_sample=per_sample,
            warnings=list(data.get("warnings", [])),
            clusters=dict(zip(*unpack(data.get("clusters", {})), strict=True)),
        )


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


class Benchmark:
    """Base class: the configuration, the limits and the metrics that need no task code.

    Subclasses give ``size``, ``at``, ``clusters`` and ``task_scores``.
    """

    about = "picture"  # what a question is about, and a cluster stands for

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self.cfg = dict(cfg)
        self.name: str = cfg["name"]
        self.title: str = cfg.get("title") or self.name
        self.max_new_tokens: int = int(cfg["max_new_tokens"])
        self.until: list[str] = list(cfg.get("until") or [])
        self.reasoning_tokens: int = 0  # new tokens of a first stage, where there is one
        self.metric: str = cfg["metric"]
        self.scale: float = float(cfg.get("scale", 1.0))
        self.metrics: list[str] = list(cfg.get("metrics") or [self.metric])
        self.reference: str = cfg.get("reference", "none")

    def size(self) -> int:
        """Samples in the data set."""
        raise NotImplementedError

    def at(self, indices: Sequence[int]) -> list[Sample]:
        """The samples at these positions of the data set, in the order given."""
        raise NotImplementedError

    def clusters(self, indices: Sequence[int]) -> dict[int, str]:
        """By sample index, the page, picture or text the question is about."""
        raise NotImplementedError

    @cached_property
    def order(self) -> list[int]:
        """Positions of all samples in the order in which limits take them; see ``spread``."""
        return spread(self.clusters(range(self.size())))

    def chosen(self, limit: int | None = None) -> list[int]:
        """Positions, in the data set's order, of the first ``limit`` samples of ``order``; None: of all.

        Raises UserError for a limit below 1.
        """
        count = self.count(limit)
        return list(range(count)) if count == self.size() else sorted(self.order[:count])

    def samples(self, limit: int | None = None) -> list[Sample]:
        """The samples that ``limit`` leaves, in the data set's order."""
        return self.at(self.chosen(limit))

    def prepare(self, adapter: Any, text: str, pictures: list, new_tokens: int | None = None) -> Any:
        """A prompt as the model takes it: the adapter's ``Inputs``.

        new_tokens: how many may follow it, by default as many as an answer may have.
        """
        return adapter.prepare(text, pictures)

    def references(self, indices: Sequence[int]) -> dict[int, list[str]]:
        """By sample index, the data set's own answers, for people to read; empty where it has none."""
        return {}

    def task_scores(
        self, cells: Mapping[str, Mapping[int, str]], indices: Sequence[int]
    ) -> dict[str, Scores]:
        """Scores of several cells against the data set's own references."""
        raise NotImplementedError

    def count(self, limit: int | None) -> int:
        """Samples that ``limit`` leaves. Raises UserError for a limit below 1."""
        if limit is None:
            return self.size()
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise UserError(
                f"limit={limit!r} leaves no sample of {self.name}: give a whole number of at least 1."
            )
        return min(limit, self.size())

    def score(
        self,
        answers: Mapping[int, str],
        indices: Sequence[int] | None = None,
        *,
        reference: Mapping[int, str] | None = None,
        tokens: Mapping[int, Sequence[int]] | None = None,
        reference_tokens: Mapping[int, Sequence[int]] | None = None,
    ) -> Scores:
        """Scores of one cell; see ``score_cells``."""
        return self.score_cells(
            {"cell": answers},
            indices,
            reference=reference,
            tokens={"cell": tokens} if tokens is not None else None,
            reference_tokens=reference_tokens,
        )["cell"]

    def score_cells(
        self,
        cells: Mapping[str, Mapping[int, str]],
        indices: Sequence[int] | None = None,
        *,
        reference: Mapping[int, str] | None = None,
        tokens: Mapping[str, Mapping[int, Sequence[int]]] | None = None,
        reference_tokens: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[str, Scores]:
        """Scores of several cells of this benchmark at once (one Java start for all captions).

        ``cells`` maps a cell's name to its answers by sample index, exactly as the model gave them;
        ``indices`` are those to score, in the data set's order (None: all).
        ``reference`` is the same model's uncompressed answers; with it every cell gets
        ``fidelity_rougeL`` and ``answer_agreement``, and with tokens ``first_divergence`` too.

        Raises UserError when a cell's answers are not those of ``indices``.
        """
        from kvbench.benchmarks.fidelity import fidelity

        wanted = range(self.size()) if indices is None else indices
        for name, answers in cells.items():
            check_answers(answers, wanted, f"cell {name} of {self.name}")
        if reference is not None:
            check_answers(reference, wanted, f"the uncompressed answers of {self.name}")
        scores = self.task_scores(cells, wanted)
        clusters = self.clusters(wanted)
        for name, answers in cells.items():
            scores[name].clusters = clusters
            if reference is not None:
                given = (tokens or {}).get(name)
                values = fidelity(answers, reference, given, reference_tokens)
                for metric, by_sample in values.items():
                    scores[name].per_sample[metric] = by_sample
                    scores[name].metrics[metric] = sum(by_sample.values()) / len(by_sample)
            elif self.reference == "answers":
                scores[name].warnings.append(
                    f"{self.name} compares answers with the model's own uncompressed ones, which are missing:"
                    " run method=fullkv on the same model and benchmark into the same store, then score."
                )
        return scores


def spread(clusters: Mapping[int, str]) -> list[int]:
    """Sample indices in the order in which a limit takes them: a question of each picture, then another.

    Pictures, and the questions about one, are in an order drawn once for all cells (by a digest of their
    positions, so that it depends on nothing else); whatever ``limit`` is, it continues every smaller one.
    """

    def draw(index: int) -> bytes:
        return hashlib.sha256(str(index).encode()).digest()

    asked: dict[str, list[int]] = {}
    for index in sorted(clusters, key=draw):
        asked.setdefault(clusters[index], []).append(index)
    rounds = itertools.zip_longest(*asked.values())
    return [index for turn in rounds for index in turn if index is not None]


def check_answers(answers: Mapping[int, str], wanted: Sequence[int], what: str) -> None:
    """Raise UserError, naming the samples, unless ``answers`` holds one text for each wanted index."""
    missing = [index for index in wanted if index not in answers]
    extra = sorted(set(answers) - set(wanted))
    wrong = [index for index in wanted if index in answers and not isinstance(answers[index], str)]
    if missing:
        raise UserError(f"{what} lacks the answers of samples {listed(missing)}: run it again to fill them.")
    if extra:
        raise UserError(
            f"{what} has answers of samples {listed(extra)} that are not to be scored: drop them first."
        )
    if wrong:
        raise UserError(f"{what} has no text for samples {listed(wrong)}: generate them again.")


def listed(indices: Sequence[int], most: int = 10) -> str:
    """``1, 2, 3 and 7 more``."""
    head = ", ".join(str(index) for index in indices[:most])
    return head if len(indices) <= most else f"{head} and {len(indices) - most} more"
