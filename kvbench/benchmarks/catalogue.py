"""Every task of the installed lmms-eval, from its YAML files: what it asks, on which data, how it scores.

Nothing is imported from lmms-eval, so that planning and listing stay fast.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvbench.checks import suggest
from kvbench.errors import UserError

GENERATES = "generate_until"  # one answer in one round
_KINDS = {
    "multiple_choice": "scores by likelihood",
    "loglikelihood": "scores by likelihood",
    "generate_until_multi_round": "asks in several rounds",
    "generate_until_agentic": "asks in several rounds",
    "generate_visual_cot": "generates pictures",
}
_JUDGED = re.compile(r"gpt|judge|llm", re.IGNORECASE)
_CALLS_A_JUDGE = re.compile(r"import openai|from openai|llm_judge|get_eval\(|API_KEY")
_TASK = re.compile(r"^task:\s*[\"']?([\w.\-]+)[\"']?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Task:
    """One task. ``data``: hub id, ``subset``: its configuration; ``why``: what kvbench cannot do with it."""

    name: str
    path: Path
    data: str
    subset: str
    split: str
    metrics: tuple[str, ...]
    higher_is_better: bool
    max_new_tokens: int | None
    until: tuple[str, ...]
    why: str

    @property
    def scale(self) -> int:
        """Tables show a mean in percent; what a task aggregates by itself, in its own unit."""
        return 100 if self.metrics and self.metrics[0] in _SHARES else 1


_SHARES = {"exact_match", "anls", "acc", "accuracy", "relaxed_overall", "mcq_accuracy"}


class _Loader(yaml.SafeLoader):
    """YAML whose ``!function`` tags are their text."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: getattr(node, "value", None))


def root() -> Path:
    """The folder of lmms-eval's tasks."""
    (package,) = importlib.util.find_spec("lmms_eval").submodule_search_locations
    return Path(package) / "tasks"


@functools.cache
def files() -> dict[str, Path]:
    """The file of every task by the task's name; groups and templates are left out."""
    found: dict[str, Path] = {}
    for path in sorted(root().rglob("*.yaml")):
        names = _TASK.findall(path.read_text("utf-8", errors="replace"))
        if len(names) == 1:
            found.setdefault(names[0], path)
    return found


def _read(path: Path) -> dict[str, Any]:
    """A file's keys over those of the files that it includes."""
    try:
        own = yaml.load(path.read_text("utf-8"), Loader=_Loader) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {path}, a task of lmms-eval: install lmms-eval again.") from error
    included = own.pop("include", None) or []
    merged: dict[str, Any] = {}
    for name in [included] if isinstance(included, str) else included:
        if (path.parent / name).is_file():
            merged |= _read(path.parent / name)
    return merged | own


@functools.cache
def task(name: str) -> Task:
    """A task by its name. Raises UserError, with the nearest names, where lmms-eval has none."""
    if name not in files():
        raise UserError(f"lmms-eval has no task {name!r}: {suggest(name, list(files()))}")
    path = files()[name]
    known = _read(path)
    listed = [entry for entry in known.get("metric_list") or [] if isinstance(entry, dict)]
    limits = known.get("generation_kwargs") or {}
    most = limits.get("max_new_tokens", limits.get("max_gen_toks"))
    until = limits.get("until") or []
    return Task(
        name=name,
        path=path,
        data=str(known.get("dataset_path") or ""),
        subset=str(known.get("dataset_name") or ""),
        split=str(known.get("test_split") or known.get("validation_split") or ""),
        metrics=tuple(
            str(entry["metric"]) for entry in listed if entry.get("metric") not in (None, "submission")
        ),
        higher_is_better=bool(listed[0].get("higher_is_better", True)) if listed else True,
        max_new_tokens=most if isinstance(most, int) and most > 0 else None,
        until=tuple([until] if isinstance(until, str) else until),
        why=_why(known, listed, path),
    )


def _why(known: dict[str, Any], metrics: list[dict[str, Any]], path: Path) -> str:
    kind = known.get("output_type") or GENERATES
    if kind != GENERATES:
        return _KINDS.get(kind, f"has output_type {kind}")
    code = path.parent / "utils.py"
    names = " ".join(str(entry.get("metric")) for entry in metrics)
    if _JUDGED.search(names) or (code.is_file() and _CALLS_A_JUDGE.search(code.read_text("utf-8"))):
        return "is scored by another model, mostly a paid one"
    if not metrics:
        return "has no metric"
    return "" if known.get("dataset_path") else "names no data"


def every(word: str = "") -> Iterator[Task]:
    """All tasks whose name or data hold a word, by name."""
    for name in sorted(files()):
        found = task(name)
        if word.lower() in f"{name} {found.data}".lower():
            yield found


def usable(name: str) -> Task:
    """A task that kvbench can ask and score. Raises UserError, which says why, for any other."""
    found = task(name)
    if found.why:
        raise UserError(
            f"lmms-eval's task {name} {found.why}, which kvbench does not do: choose another task."
        )
    return found


def field(name: str | None, key: str) -> Any:
    """One value of a benchmark's config over a task: data, max_new_tokens, until, metric, metrics, scale."""
    if not name:
        raise UserError(
            "benchmark=lmms takes a task: set benchmark.task=NAME, `kvbench list tasks` shows them."
        )
    found = usable(str(name))
    if key == "max_new_tokens" and found.max_new_tokens is None:
        raise UserError(f"lmms-eval's task {name} names no limit: set benchmark.max_new_tokens=N.")
    if key == "metric":
        return found.metrics[0]
    value = getattr(found, key)
    return list(value) if isinstance(value, tuple) else value


def scoring(name: str) -> dict[str, Any]:
    """What a benchmark over a task is scored by; empty where there is no such task."""
    if name not in files() or task(name).why:
        return {}
    return {key: field(name, key) for key in ("metric", "metrics", "scale")} | {"reference": "none"}
