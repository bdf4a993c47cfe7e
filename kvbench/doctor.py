"""What models and benchmarks need on this machine, and whether it is here. No torch, nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench import paths
from kvbench.benchmarks import needs
from kvbench.errors import UserError


@dataclass(frozen=True)
class Finding:
    """One thing that a model or benchmark needs."""

    of: str  # "benchmark docvqa"
    what: str  # where it is, when present; otherwise a sentence on how to get it
    present: bool
    size_gb: float | None = None  # of what is to be fetched; None: small, or not known


def hub_folder(kind: str, name: str) -> Path:
    """Where huggingface_hub keeps a repository; kind: "models" or "datasets"."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"{kind}--{name.replace('/', '--')}"


def cached(kind: str, name: str) -> bool:
    """Whether a snapshot of a repository lies in the hub's cache."""
    snapshots = hub_folder(kind, name) / "snapshots"
    return snapshots.is_dir() and any(snapshots.iterdir())


def is_folder(text: str) -> bool:
    """Whether a data or weights setting names a folder rather than a hub id."""
    return text.startswith(("/", ".", "~")) or Path(text).expanduser().is_dir()


def benchmark(cfg: Mapping[str, Any]) -> list[Finding]:
    """Data, videos and programs of one benchmark."""
    name, data = str(cfg["name"]), str(cfg.get("data") or "sets")
    of, size = f"benchmark {name}", cfg.get("size_gb") or None
    found = [_data(of, name, data, cfg, size)]
    if cfg.get("video_column") and data != "micro":
        from kvbench.benchmarks import video

        root = video.folder(cfg)
        present = root.is_dir() and any(path.suffix in video.SUFFIXES for path in root.iterdir())
        how = f"no video in {root}: run `kvbench fetch benchmark={name}`, or set benchmark.videos=FOLDER."
        found.append(Finding(of, f"videos in {root}" if present else how, present))
    unmet = needs.missing(cfg)
    found += [Finding(of, sentence, False) for sentence in unmet]
    met = [need for need in needs.names(cfg) if not needs.missing(cfg, only=(need,))]
    return found + [Finding(of, need, True) for need in met]


def _data(of: str, name: str, data: str, cfg: Mapping[str, Any], size: float | None) -> Finding:
    if data in ("micro", "package"):
        return Finding(of, f"data: {data}, made here when needed", True)
    if data == "sets" or is_folder(data):
        from kvbench.benchmarks.loading import local_files

        try:
            files = local_files(cfg, "")
            return Finding(of, f"data: {len(files or [])} Parquet files", True)
        except UserError as error:
            return Finding(of, str(error), False)
    if cached("datasets", data):
        return Finding(of, f"data: {hub_folder('datasets', data)}", True)
    how = f"no copy of {data}: run `kvbench fetch benchmark={name}`, or set benchmark.data=FOLDER."
    return Finding(of, how, False, size)


def model(cfg: Mapping[str, Any]) -> list[Finding]:
    """The checkpoint of one model."""
    name, weights = str(cfg["name"]), str(cfg.get("weights") or "")
    of, size = f"model {name}", cfg.get("size_gb")
    if weights == "random":
        return [Finding(of, "random weights, made here", True)]
    if weights in ("shipped", "embedded"):
        present = (paths.cache_dir() / "smollm2-135m-instruct").is_dir()
        how = "the small language model is not set up: run `make setup`."
        return [Finding(of, "weights: set up" if present else how, present, None if present else 0.3)]
    if is_folder(weights):
        present = (Path(weights).expanduser() / "config.json").is_file()
        how = f"no config.json in {weights}: set model.weights to the folder of a checkpoint."
        return [Finding(of, f"weights: {weights}" if present else how, present)]
    if cached("models", weights):
        return [Finding(of, f"weights: {hub_folder('models', weights)}", True)]
    how = f"no copy of {weights}: run `kvbench fetch model={name}`, or set model.weights=FOLDER."
    return [Finding(of, how, False, size)]
