"""From a benchmark's config to an lmms-eval task over local data."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvbench.benchmarks import catalogue, pictures, subsets, video, wording
from kvbench.benchmarks.parquet import known_rows, split_files
from kvbench.benchmarks.repairs import repair
from kvbench.benchmarks.usable import check_columns, check_schema, require_hub_data, unusable
from kvbench.errors import UserError
from kvbench.paths import cache_dir, is_folder
from kvbench.support import contents

OWN_TASKS = Path(__file__).parent / "tasks"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence lmms-eval's log lines and progress bars; errors still raise. Restores what it touched."""
    from loguru import logger

    level = logging.root.manager.disable
    logger.disable("lmms_eval")
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
        logger.enable("lmms_eval")


@contextlib.contextmanager
def without_capture() -> Iterator[None]:
    """Let ``import capture_metric`` succeed for the length of the block when the package is not installed.

    lmms-eval's detailcaps imports it before it defines its prompt. The stand-in refuses to score.
    """
    if importlib.util.find_spec("capture_metric") is not None:
        yield
        return

    class CAPTURE:
        def compute_score(self, *_: Any) -> Any:
            raise UserError(
                "the CAPTURE metric needs the capture_metric package and a GPU: leave it out of metrics."
            )

    package = types.ModuleType("capture_metric")
    module = types.ModuleType("capture_metric.capture")
    module.CAPTURE = CAPTURE  # type: ignore[attr-defined]
    stand_ins = {"capture_metric": package, "capture_metric.capture": module}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def without_downloads() -> Iterator[None]:
    """Keep task code from fetching data when it is imported, and give it the $HF_HOME it insists on."""
    import nltk
    from huggingface_hub import constants

    os.environ.setdefault("HF_HOME", constants.HF_HOME)
    download = nltk.download
    nltk.download = lambda *_, **__: False  # type: ignore[assignment]
    try:
        yield
    finally:
        nltk.download = download


def task_config(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """lmms-eval's configuration of the task: the original's, our few changes over it, our token limits."""
    import lmms_eval.tasks
    import yaml
    from lmms_eval.utils import load_yaml_config

    originals = Path(lmms_eval.tasks.__file__).parent
    own_file = OWN_TASKS / f"{cfg['task']}.yaml"
    if own_file.exists():
        own = yaml.safe_load(own_file.read_text(encoding="utf-8"))
        original = originals / own.pop("include")
    else:
        own = {}
        original = catalogue.task(str(cfg["task"])).path
    with without_capture(), without_downloads():
        config = {**load_yaml_config(str(original), mode="full"), **own}
    config.pop("group", None)
    # An explicit policy: without `until` lmms-eval adds "\n\n", which cuts long descriptions short.
    config["generation_kwargs"] = {
        "max_new_tokens": int(cfg["max_new_tokens"]),
        "until": list(cfg.get("until") or []),
        "do_sample": False,
    }
    if own_words := wording.first_stage(cfg):
        usual = (config.get("lmms_eval_specific_kwargs") or {}).get("default", {})
        for words in (own_words, wording.last_stage(cfg) or {}):
            wording.check(cfg, words, usual)
        config["lmms_eval_specific_kwargs"] = {"default": {**usual, **own_words}}
    repair(config, cfg)
    if callable(config.get("doc_to_visual")):
        config["doc_to_visual"] = pictures.as_shown(config["doc_to_visual"])
    if cfg.get("video_column"):
        config["doc_to_visual"] = lambda doc: [
            video.clip(video.find(cfg, doc[cfg["video_column"]]), int(cfg["frames"]))
        ]
    return config


def split_of(config: Mapping[str, Any]) -> str:
    """The split that lmms-eval evaluates."""
    return config.get("test_split") or config["validation_split"]


def files_or_none(cfg: Mapping[str, Any], split: str) -> list[str] | None:
    """``local_files``, with the micro set drawn when it is asked for."""
    if cfg.get("data") == "micro":
        from kvbench.benchmarks import micro

        return split_files(micro.folder(str(cfg["name"])), split, str(cfg["name"]))
    return local_files(cfg, split)


def hub_arguments(cfg: Mapping[str, Any]) -> dict[str, Any] | None:
    """What load_dataset takes besides the name: the pinned commit, if any."""
    revision = cfg.get("revision")
    return {"revision": revision} if revision else None


def local_files(cfg: Mapping[str, Any], split: str) -> list[str] | None:
    """Parquet files of the benchmark on this machine; None when its data are a hub id.

    ``data: sets`` names the generated sets, an existing folder stands for itself.
    """
    data = str(cfg.get("data") or "sets")
    if data == "sets":
        folder = sets_folder(str(cfg["task"]))
        files = split_files(folder, split, str(cfg["name"])) if folder else []
        if not files:
            raise UserError(
                f"the generated data set of {cfg['name']} is missing from {cache_dir()}: `kvbench fetch"
                f" benchmark={cfg['name']}` draws it."
            )
        return files
    if is_folder(data):
        files = split_files(Path(data).expanduser(), split, str(cfg["name"]))
        if not files:
            raise UserError(
                f"benchmark {cfg['name']} finds no parquet file in data={data}: name the folder of them."
            )
        return files
    return None


def converted(files: list[str]) -> str:
    """Folder where the ``datasets`` library keeps what it makes of these files.

    By their content: its own key is name and time stamp, which a replaced file may share with the old one.
    """
    return str(cache_dir() / "datasets" / contents.files(files))


def known_size(cfg: Mapping[str, Any]) -> int | None:
    """Samples of a benchmark whose data are on this machine, without loading them; None: not known."""
    subset = str(cfg.get("subset") or "full")
    if subset.startswith(("first_", "last_", "random_")):
        return int(subset.partition("_")[2]) if subset.partition("_")[2].isdigit() else None
    data = str(cfg.get("data") or "sets")
    if subset != "full" or cfg.get("kind") in ("documents", "folder"):
        return None
    if data == "micro":
        from kvbench.benchmarks import micro

        return known_rows(micro.folder(str(cfg["name"])))
    folder = sets_folder(str(cfg["task"])) if data == "sets" else Path(data).expanduser()
    local = folder is not None and (data == "sets" or is_folder(data))
    return known_rows(folder) if local else None


def sets_folder(name: str) -> Path | None:
    """Folder of a generated set, or None: the current version's, as kvbench.embedded.sets names it."""
    try:
        from kvbench.embedded import sets
    except ImportError:
        sets = None
    folder = getattr(sets, "folder", None)
    if callable(folder):
        try:
            root = Path(folder())
        except UserError:
            return None
        return root / name if (root / name).is_dir() else None
    found = sorted(cache_dir().glob(f"sets-*/{name}"))
    return found[-1] if found else None


def load_task(cfg: Mapping[str, Any]) -> Any:
    """The lmms-eval task object (``ConfigurableTask``) of a benchmark.

    Raises UserError when the data are missing.
    """
    with quiet():
        from lmms_eval.api.task import ConfigurableTask

        config = task_config(cfg)
    split = split_of(config)
    files = files_or_none(cfg, split)
    if files is not None:
        check_schema(cfg, files)
        config["dataset_path"] = "parquet"
        config["dataset_name"] = None
        config["dataset_kwargs"] = {"data_files": {split: files}, "cache_dir": converted(files)}
    else:
        require_hub_data(cfg)
        config["dataset_path"] = str(cfg["data"])
        # Never lmms-eval's own download of videos: `kvbench fetch` puts them in place.
        config["dataset_kwargs"] = hub_arguments(cfg)
    with quiet():
        # What TaskManager does for one task, without its index of all tasks (seconds to build).
        # No model name: the default prompts, the same for every model.
        try:
            task = ConfigurableTask(config={**config, "task": cfg["task"]})
        except Exception as error:  # it loads the data and decodes the first document
            raise unusable(cfg, error) from error
    check_columns(cfg, task.eval_docs.column_names)
    chosen = subsets.indices(cfg.get("subset") or "full", task.eval_docs_no_media, str(cfg["name"]))
    if chosen is not None:
        for part in (task.dataset, task.dataset_no_image):
            part[split] = part[split].select(chosen)
    return task
