"""A folder of your own: one JSONL or CSV file of questions beside the pictures or videos that they are about.

A row has ``question``, ``answers`` (or ``answer``; a list, in CSV parted by |), and if it is about something
``image``, ``images`` or ``video`` (paths from the folder), ``id`` and ``group`` (whose questions belong
together: by default those about one picture).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from kvbench.benchmarks.base import Benchmark, Sample, Scores
from kvbench.benchmarks.fidelity import ROUGE, rouge_l
from kvbench.checks import suggest
from kvbench.errors import UserError

METRICS = ("anls", "exact", "relaxed", "rougeL", "cider", "fidelity")
INDEX = (".jsonl", ".csv")


def scoring(metric: str) -> dict[str, Any]:
    """What conf/benchmark says of a benchmark's metric, for one of METRICS. Raises UserError for another."""
    if metric not in METRICS:
        raise UserError(f"a folder has no metric {metric!r}: {suggest(str(metric), METRICS)}")
    own = ROUGE if metric == "fidelity" else metric
    scale = 1 if metric in ("cider", "fidelity") else 100
    reference = "answers" if metric == "fidelity" else "none"
    return {"metric": own, "metrics": [own], "scale": scale, "reference": reference}


class FolderBenchmark(Benchmark):
    """Rows of one index file. Raises UserError, naming the line, for a row that cannot be asked or scored."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self.scored_by = str(cfg.get("score") or cfg.get("metric"))
        super().__init__({**cfg, **scoring(self.scored_by)})
        if not cfg.get("data"):
            raise UserError("benchmark=folder reads a folder: set benchmark.data=DIR.")
        self.folder = Path(str(cfg["data"])).expanduser()
        self.suffix = str(cfg.get("suffix") or "")
        self.about = "video" if any(row.get("video") for row in self.rows) else "picture"

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Every row, checked, with ``answers`` and ``images`` as lists and an ``id``."""
        file = index_file(self.folder)
        rows, seen = [], {}
        for line, raw in _lines(file):
            where = f"{file}, line {line}"
            row = self._row(raw, where)
            if row["id"] in seen:
                raise UserError(
                    f"{where}: id {row['id']!r} stands in line {seen[row['id']]} already: change it."
                )
            seen[row["id"]] = line
            rows.append(row)
        if not rows:
            raise UserError(f"{file} has no row: write one question a line.")
        return rows

    def _row(self, raw: Mapping[str, Any], where: str) -> dict[str, Any]:
        question = str(raw.get("question") or "").strip()
        if not question:
            raise UserError(f"{where}: there is no question: write one, or delete the line.")
        answers = _several(raw.get("answers", raw.get("answer")))
        if not answers and self.scored_by != "fidelity":
            raise UserError(f"{where}: there are no answers: write them, or set benchmark.metric=fidelity.")
        images = _several(raw.get("images", raw.get("image")))
        video = raw.get("video") or None
        for name in [*images, *([video] if video else [])]:
            if not (self.folder / name).is_file():
                raise UserError(f"{where}: there is no file {self.folder / name}: correct the path.")
        identity = str(raw.get("id") or where.rpartition(" ")[2])
        return {
            "id": identity,
            "question": question,
            "answers": answers,
            "images": images,
            "video": video,
        } | {"group": str(raw.get("group") or (images[0] if images else video or identity))}

    def size(self) -> int:
        return len(self.rows)

    def at(self, indices: Sequence[int]) -> list[Sample]:
        return [
            Sample(
                id=row["id"], index=i, text=row["question"] + self.suffix, images=partial(self._pictures, row)
            )
            for i, row in ((index, self.rows[index]) for index in indices)
        ]

    def _pictures(self, row: Mapping[str, Any]) -> list[Any]:
        from PIL import Image

        from kvbench.benchmarks import video

        if row["video"]:
            return [video.clip(self.folder / row["video"], int(self.cfg.get("frames") or 8))]
        return [Image.open(self.folder / name).convert("RGB") for name in row["images"]]

    def clusters(self, indices: Sequence[int]) -> dict[int, str]:
        """Rows of one group, else those about one picture."""
        return {index: self.rows[index]["group"] for index in indices}

    def references(self, indices: Sequence[int]) -> dict[int, list[str]]:
        return {index: self.rows[index]["answers"] for index in indices}

    def task_scores(
        self, cells: Mapping[str, Mapping[int, str]], indices: Sequence[int]
    ) -> dict[str, Scores]:
        if self.scored_by == "fidelity":
            return {name: Scores(n=len(indices)) for name in cells}
        truths = [self.rows[index]["answers"] for index in indices]
        if self.scored_by == "cider":
            from kvbench.benchmarks.captions import cider

            values = cider(truths, [[answers[i] for i in indices] for answers in cells.values()])
        else:
            rule = _RULES[self.scored_by]
            values = [
                [
                    max(rule(answers[i], truth) for truth in known)
                    for i, known in zip(indices, truths, strict=True)
                ]
                for answers in cells.values()
            ]
        found = {}
        for name, mine in zip(cells, values, strict=True):
            by_sample = dict(zip(indices, map(float, mine), strict=True))
            mean = sum(by_sample.values()) / len(by_sample)
            found[name] = Scores(len(indices), {self.metric: mean}, {self.metric: by_sample})
        return found


def index_file(folder: Path) -> Path:
    """The one index of a folder. Raises UserError where there is none, or several."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: set benchmark.data=DIR.")
    found = sorted(path for path in folder.iterdir() if path.suffix in INDEX)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "neither"
        raise UserError(f"{folder} must hold one JSONL or CSV file of questions, not {names}.")
    return found[0]


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row) of an index file, blank lines left out."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file} ({error}): save it as UTF-8.") from error
    if file.suffix == ".csv":
        reader = csv.DictReader(text.splitlines())
        yield from ((reader.line_num, row) for row in reader)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UserError(f"{file}, line {number}: this is no JSON ({error}): correct it.") from error
            if not isinstance(row, dict):
                raise UserError(
                    f"{file}, line {number}: a row is an object with a question, not {line[:40]!r}."
                )
            yield number, row


def _several(value: Any) -> list[str]:
    """A list of texts, of one text, or of texts parted by |."""
    if value is None:
        return []
    values = value if isinstance(value, list) else str(value).split("|")
    return [text for text in (str(one).strip() for one in values) if text]


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _anls(answer: str, truth: str) -> float:
    """Normalised Levenshtein similarity, 0 below a half (Biten et al. 2019)."""
    import Levenshtein

    answer, truth = _plain(answer), _plain(truth)
    share = Levenshtein.distance(answer, truth) / max(len(answer), len(truth), 1)
    return 1 - share if share < 0.5 else 0.0


def _exact(answer: str, truth: str) -> float:
    return float(_plain(answer).rstrip(".") == _plain(truth).rstrip("."))


def _relaxed(answer: str, truth: str) -> float:
    """ChartQA's rule, by lmms-eval's own code: numbers within 5 %."""
    from lmms_eval.tasks.chartqa.utils import relaxed_correctness

    return float(relaxed_correctness(answer.strip().rstrip("."), truth))


_RULES = {"anls": _anls, "exact": _exact, "relaxed": _relaxed, "rougeL": rouge_l}
