"""Any single-answer lmms-eval task as a benchmark."""

from __future__ import annotations

import hashlib
import inspect
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from kvbench.benchmarks import fit, needs, pictures, wording
from kvbench.benchmarks.base import Benchmark, Sample, Scores
from kvbench.benchmarks.fidelity import AGREEMENT, DIVERGENCE, ROUGE
from kvbench.benchmarks.loading import load_task, quiet
from kvbench.benchmarks.usable import check_flaws, flaw, refuse
from kvbench.errors import FileGone, Unanswerable, UserError

# Columns that name a document, in order of preference.
_ID_COLUMNS = (
    "questionId",
    "question_id",
    "image_id",
    "id",
    "docId",
    "qid",
    "videoID",
    "file_name",
    "index",
    "image",
)
# Columns that name the page or picture a question is about.
_PICTURE_COLUMNS = ("docId", "doc_id", "image_id", "videoID", "video")

# Columns that the prompt is made of: a null would be asked as "None".
_QUESTION_COLUMNS = ("question", "instruction", "options")

# Columns that hold a document's own answers: tasks score with these, and may name no target at all.
_ANSWER_COLUMNS = ("answers", "answer", "reference_strs", "caption_str", "references")


class LmmsBenchmark(Benchmark):
    """Prompts, pictures and metrics are lmms-eval's own; the data and the limits come from the config."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self.task: Any = load_task(cfg)
        from kvbench.benchmarks.replay import known_metrics

        self.last_stage = wording.last_stage(cfg)
        self.reasoning_tokens = wording.reasoning_tokens(cfg)
        self.about = "video" if cfg.get("video_column") else "picture"
        self._clusters: dict[int, str] = {}
        self._known = known_metrics(self.task)
        known = {*self._known, ROUGE, AGREEMENT, DIVERGENCE}
        unknown = [metric for metric in {*self.metrics, self.metric} if metric not in known]
        if unknown:
            raise UserError(
                f"benchmark {self.name} has no metric {unknown[0]!r}: choose from {', '.join(sorted(known))}."
            )

    @property
    def caption_metrics(self) -> list[str]:
        """Configured metrics that need Java: CIDEr, computed here for all cells at once."""
        return [metric for metric in self.metrics if metric.endswith("_CIDEr")]

    @property
    def java_metrics(self) -> list[str]:
        """Configured metrics that lmms-eval computes with Java: BLEU, METEOR and ROUGE-L of captions."""
        return [m for m in self.metrics if m.endswith(("_Bleu_4", "_METEOR", "_ROUGE_L"))]

    @property
    def plain_metrics(self) -> list[str]:
        """Configured metrics that lmms-eval computes."""
        return [
            metric for metric in self.metrics if metric in self._known and metric not in self.caption_metrics
        ]

    @cached_property
    def _texts(self) -> Any:
        """Documents without their pictures: reading them decodes nothing."""
        return self.task.eval_docs_no_media

    def size(self) -> int:
        return len(self._texts)

    def at(self, indices: Sequence[int]) -> list[Sample]:
        docs, flaws = self.task.eval_docs, self._flaws(indices)
        return [
            Sample(
                id=_identity(self._texts[index], index),
                index=index,
                text="" if index in flaws else self.task.doc_to_text(self._texts[index]),
                images=partial(refuse, flaws[index])
                if index in flaws
                else partial(_images, self.task, docs, index),
                then=None if index in flaws else self._then(self._texts[index]),
            )
            for index in indices
        ]

    def prepare(self, adapter: Any, text: str, pictures: list, new_tokens: int | None = None) -> Any:
        """As the base class; pages of a document at no more than ``page_pixels``."""
        return fit.pages(
            adapter, text, pictures, new_tokens or self.max_new_tokens, self.cfg.get("page_pixels")
        )

    def _flaws(self, indices: Sequence[int]) -> dict[int, str]:
        """By sample index, what its row lacks to be asked or scored, as a sentence."""
        found = {}
        for index in indices:
            doc = self._texts[index]
            what = f"sample {index} of {self.name} ({_identity(doc, index)})"
            if sentence := flaw(what, doc, self._needed):
                found[index] = sentence
        return found

    @cached_property
    def _needed(self) -> list[str]:
        """Columns that a sample cannot be asked or scored without."""
        own = any(metric in self._known for metric in self.metrics)
        wanted = [*_QUESTION_COLUMNS, *(_ANSWER_COLUMNS if own else ())]
        listed = self.cfg.get("columns") or self._texts.column_names
        return [column for column in wanted if column in listed and column in self._texts.column_names]

    def _then(self, doc: Mapping[str, Any]) -> str | None:
        """The prompt of a second stage, as the task words it."""
        if self.last_stage is None:
            return None
        return self.task.config.doc_to_text(doc, {**self.task.lmms_eval_specific_kwargs, **self.last_stage})

    def clusters(self, indices: Sequence[int]) -> dict[int, str]:
        """The task's own name of page or video; else the stored picture, which is read once; else the id."""
        if unknown := [index for index in indices if index not in self._clusters]:
            self._clusters |= self._find_clusters(unknown)
        return {index: self._clusters[index] for index in indices}

    def _find_clusters(self, indices: list[int]) -> dict[int, str]:
        for column in _PICTURE_COLUMNS:
            if column in self._texts.column_names:
                names = self._texts.select(indices)[column]
                return {  # without a name, each is about something of its own
                    index: f"sample {index}" if name is None else str(name)
                    for index, name in zip(indices, names, strict=True)
                }
        found = _picture_digests(self.task.eval_docs, indices)
        return found or {index: _identity(self._texts[index], index) for index in indices}

    def references(self, indices: Sequence[int]) -> dict[int, list[str]]:
        found = {}
        for index in indices:
            doc = self._texts[index]
            given = next((doc[name] for name in _ANSWER_COLUMNS if doc.get(name) is not None), None)
            if given is None:
                given = self.task.doc_to_target(doc)
            given = given if isinstance(given, list) else [given]
            found[index] = list(dict.fromkeys(str(answer) for answer in given))
        return found

    def task_scores(
        self, cells: Mapping[str, Mapping[int, str]], indices: Sequence[int]
    ) -> dict[str, Scores]:
        from kvbench.benchmarks.captions import java
        from kvbench.benchmarks.replay import Replay, evaluate_task

        for sentence in needs.missing(
            self.cfg, only=("wordnet",)
        ):  # its own code would retry, then trace back
            raise UserError(sentence)
        check_flaws(self._flaws(indices))
        n = len(indices)
        scores, logged = {}, {}
        lacking = self.java_metrics if java() is None else []
        wanted = [metric for metric in self.plain_metrics if metric not in lacking]
        for name, answers in cells.items():
            figures, logged[name] = evaluate_task(self.task, Replay(answers), indices, wanted)
            scores[name] = Scores(n=n, metrics={m: figures[m] for m in wanted if m in figures})
            for metric in wanted:
                if metric not in figures:
                    scores[name].warnings.append(
                        f"{metric} of {self.name} is missing: none of the {n} scored samples counts for it."
                    )
                elif values := self._contributions(metric, figures[metric], logged[name]):
                    scores[name].per_sample[metric] = values
            for metric in lacking:
                scores[name].warnings.append(
                    f"{metric} of {self.name} is missing: install a Java runtime, then score again."
                )
        for metric in self.caption_metrics:
            self._add_cider(metric, scores, logged)
        return scores

    def _contributions(self, metric: str, figure: float, logged: list[dict]) -> dict[int, float]:
        """Values by sample whose mean is the figure; empty when the metric is no mean over samples.

        lmms-eval logs numbers for some metrics; for the others the task's aggregation of one sample is it.
        """
        if metric in self.java_metrics:
            return {}
        results = {s["doc_id"]: s[metric] for s in logged if metric in s}
        if all(_is_number(value) for value in results.values()):
            return {index: float(value) for index, value in results.items()}
        aggregate = self.task.aggregation()[self._known[metric]]
        with tempfile.TemporaryDirectory() as folder, quiet():
            wants = "args" in inspect.signature(aggregate).parameters  # lmms-eval decides it alike
            given = {"args": Namespace(output_path=folder)} if wants else {}
            values = {index: float(aggregate([value], **given)) for index, value in results.items()}
        mean = sum(values.values()) / len(values)
        return values if abs(mean - figure) <= 1e-4 * max(1.0, abs(figure)) else {}

    def _add_cider(self, metric: str, scores: dict[str, Scores], logged: Mapping[str, list[dict]]) -> None:
        """CIDEr of every cell from what the task's own process_results hands to its aggregation."""
        from kvbench.benchmarks.captions import cider, java

        try:
            first = next(iter(logged.values()))
            values = cider(
                [sample[metric]["answer"] for sample in first],
                [[sample[metric]["pred"] for sample in samples] for samples in logged.values()],
            )
        except UserError as error:
            for cell in scores.values():
                cell.warnings.append(f"{metric} of {self.name} is missing: {error}")
                cell.failed = java() is not None  # it may work next time
            return
        import numpy as np

        for (name, samples), per_image in zip(logged.items(), values, strict=True):
            scores[name].metrics[metric] = float(np.mean(np.array(per_image)))
            scores[name].per_sample[metric] = {
                sample["doc_id"]: value for sample, value in zip(samples, per_image, strict=True)
            }
            if len(samples) == 1:
                scores[name].warnings.append(
                    f"{metric} of a single image is 0 whatever the caption, as every word is in every"
                    f" reference."
                )

    def own_figures(self, answers: Mapping[int, str], metrics: list[str] | None = None) -> dict[str, float]:
        """lmms-eval's figures of the answered samples by its own aggregation (two Java starts a metric)."""
        from kvbench.benchmarks.replay import Replay, evaluate_task

        return evaluate_task(self.task, Replay(answers), sorted(answers), metrics or self.metrics)[0]


def _images(task: Any, docs: Any, index: int) -> list[Any]:
    """The pictures of a document.

    Raises FileGone where a file of the data is not there, Unanswerable where a picture is broken or missing.
    """
    what = f"sample {index} of {task.config.task}"
    try:
        with pictures.whole():
            found = list(task.doc_to_visual(docs[index]) or [])
    except FileGone:
        raise  # maybe not this sample's fault alone: whoever asks must know
    except FileNotFoundError as error:
        raise FileGone(
            f"{what} needs {error.filename}, which is gone: restore it.", error.filename
        ) from error
    except UserError as error:
        raise Unanswerable(f"{what}: {error}") from error
    except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises for a broken picture
        raise Unanswerable(
            f"{what} has a picture that cannot be read ({type(error).__name__}: {error}): fetch the"
            " data again."
        ) from error
    except (AttributeError, TypeError) as error:  # of the None that stands in a picture's place
        raise Unanswerable(f"{what} has no picture: correct the row.") from error
    return found


def _picture_digests(docs: Any, indices: Sequence[int]) -> dict[int, str]:
    """Digest of each document's pictures as stored (nothing is decoded); empty without such columns.

    A document without a picture is about nothing that another one is about.
    """
    import datasets

    columns = [name for name, feature in docs.features.items() if isinstance(feature, datasets.Image)]
    if not columns:
        return {}
    stored = docs.select_columns(columns).select(indices)
    for column in columns:
        stored = stored.cast_column(column, datasets.Image(decode=False))
    digests = {}
    for index, doc in zip(indices, stored, strict=True):
        content = hashlib.sha256()
        pictures = [doc[column] for column in columns if doc[column]]
        for picture in pictures:
            content.update(picture["bytes"] or str(picture["path"]).encode())
        if not pictures:
            content.update(f"sample {index}".encode())
        digests[index] = content.hexdigest()[:16]
    return digests


def _identity(doc: Mapping[str, Any], index: int) -> str:
    for column in _ID_COLUMNS:
        if isinstance(doc.get(column), (str, int)):
            return str(doc[column])
    return str(index)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
