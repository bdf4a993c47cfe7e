"""LongBench (Bai et al. 2024) through lm-eval's own task code: prompts and metrics are the originals.

One benchmark a task. ``data: package`` asks about the texts that ship with kvbench in the same schema.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvbench.benchmarks import fit, needs, subsets
from kvbench.benchmarks.base import Benchmark, Sample, Scores
from kvbench.benchmarks.fidelity import AGREEMENT, DIVERGENCE, ROUGE
from kvbench.benchmarks.loading import converted, files_or_none, hub_arguments
from kvbench.benchmarks.usable import (
    check_columns,
    check_flaws,
    check_schema,
    flaw,
    refuse,
    require_hub_data,
    unusable,
)
from kvbench.errors import UserError
from kvbench.paths import cache_dir
from kvbench.support import contents


class LongBenchmark(Benchmark):
    """A ``longbench_*`` task of lm-eval; text only."""

    about = "text"

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self.task: Any = load_task(cfg)
        check_columns(cfg, self.task.eval_docs.column_names)
        chosen = subsets.indices(cfg.get("subset") or "full", self.task.eval_docs, self.name)
        self.docs = self.task.eval_docs if chosen is None else self.task.eval_docs.select(chosen)
        known = set(self.task.aggregation()) | {ROUGE, AGREEMENT, DIVERGENCE}
        unknown = [metric for metric in {*self.metrics, self.metric} if metric not in known]
        if unknown:
            raise UserError(
                f"benchmark {self.name} has no metric {unknown[0]!r}: choose from {', '.join(sorted(known))}."
            )

    def size(self) -> int:
        return len(self.docs)

    def at(self, indices: Sequence[int]) -> list[Sample]:
        flaws = self._flaws(indices)
        return [
            Sample(
                id=_identity(doc, index),
                index=index,
                text="" if index in flaws else self.task.doc_to_text(doc),
                images=partial(refuse, flaws[index]) if index in flaws else list,
            )
            for index, doc in zip(indices, self.docs.select(indices), strict=True)
        ]

    def _flaws(self, indices: Sequence[int]) -> dict[int, str]:
        """By sample index, what its row lacks to be asked or scored, as a sentence."""
        own = any(metric in self.task.aggregation() for metric in self.metrics)
        needed = ["context", "question", *(["answers"] if own else [])]
        found = {}
        for index, doc in zip(indices, self.docs.select(indices), strict=True):
            what = f"sample {index} of {self.name} ({_identity(doc, index)})"
            if sentence := flaw(what, doc, needed):
                found[index] = sentence
        return found

    def prepare(self, adapter: Any, text: str, pictures: list, new_tokens: int | None = None) -> Any:
        """As LongBench's own code: a prompt that is too long loses its middle, few-shot and code tasks go
        without chat template."""
        prepare = (
            adapter.bare if self.cfg.get("chat_template") is False else lambda part: adapter.prepare(part, [])
        )
        return fit.text(
            adapter, text, prepare, new_tokens or self.max_new_tokens, self.cfg.get("max_prompt_tokens")
        )

    def clusters(self, indices: Sequence[int]) -> dict[int, str]:
        """Every question has a text of its own, but for those that share one word for word."""
        first: dict[str, int] = {}
        texts = self.docs.select(indices)["context"]
        pairs = zip(indices, texts, strict=True)
        return {i: str(i if text is None else first.setdefault(text, i)) for i, text in pairs}

    def task_scores(
        self, cells: Mapping[str, Mapping[int, str]], indices: Sequence[int]
    ) -> dict[str, Scores]:
        """Each answer through the task's process_results, aggregated by the task's own function."""
        check_flaws(self._flaws(indices))
        docs = self.docs.select(indices)
        own = self.task.aggregation()
        metrics = [metric for metric in self.metrics if metric in own]
        scores = {}
        for name, answers in cells.items():
            pairs = list(zip(indices, docs, strict=True))
            results = {index: self.task.process_results(doc, [answers[index]]) for index, doc in pairs}
            scores[name] = Scores(
                n=len(results),
                metrics={m: float(own[m]([result[m] for result in results.values()])) for m in metrics},
                per_sample={m: {i: float(r[m]) for i, r in results.items()} for m in metrics},
            )
        return scores


def _identity(doc: Mapping[str, Any], index: int) -> str:
    return str(doc.get("_id") or index)


def load_task(cfg: Mapping[str, Any]) -> Any:
    """lm-eval's task object over local data or the hub's. Raises UserError when something is missing."""
    for sentence in needs.missing(cfg, only=("lm_eval",)):
        raise UserError(sentence)
    import lm_eval.tasks
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    name = str(cfg["task"]).removeprefix("longbench_")
    path = Path(lm_eval.tasks.__file__).parent / "longbench" / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"lm-eval has no task {cfg['task']!r}: correct `task` of benchmark {cfg['name']}.")
    config = {key: value for key, value in load_yaml(path).items() if key != "tag"}
    package = cfg.get("data") == "package"
    files = [str(package_set())] if package else files_or_none(cfg, "test")
    if files is not None:
        check_schema(cfg, files)
        config["dataset_path"], config["dataset_name"] = "parquet", None
        config["dataset_kwargs"] = {"data_files": {"test": files}, "cache_dir": converted(files)}
    else:
        require_hub_data(cfg)
        config["dataset_path"], config["dataset_kwargs"] = str(cfg["data"]), hub_arguments(cfg)
    try:
        return ConfigurableTask(config=config)
    except Exception as error:  # it loads the data
        raise unusable(cfg, error) from error


def package_set() -> Path:
    """Parquet file of the questions about the shipped texts, written once a content."""
    import datasets

    from kvbench.benchmarks import documents
    from kvbench.benchmarks.micro.texts import asked

    path = cache_dir() / "longbench-mini" / f"{contents.texts(documents.FOLDER)}.parquet"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        datasets.Dataset.from_list(asked("multifieldqa_en")).to_parquet(str(part))
        part.replace(path)
    return path
