"""What models and benchmarks need on this machine, and whether it is here. No torch, nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench import paths
from kvbench.benchmarks import needs
from kvbench.errors import UserError
from kvbench.support import hub


@dataclass(frozen=True)
class Need:
    """One thing that a model or benchmark needs."""

    of: str  # "benchmark docvqa"
    what: str  # where it is, when present; otherwise a sentence on how to get it
    present: bool
    size_gb: float | None = None  # of what is to be fetched; None: small, or not known
    hub: bool = False  # whether a hub may have it


def _hub(of: str, what: str, kind: str, name: str, cfg: Mapping[str, Any], how: str) -> Need:
    """A repository of the hub, in the revision that a config names."""
    have, wanted = hub.cached(kind, name), cfg.get("revision")
    if have and (wanted is None or wanted in have):
        return Need(of, f"{what}: {hub.folder(kind, name)}", True)
    lacking = f"revision {wanted} of {name} is not here, {have[0]} is" if have else f"no copy of {name}"
    return Need(of, f"{lacking}: {how}", False, cfg.get("size_gb") or None, hub=True)


def lacking(configs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """One sentence for each thing that (model, benchmark) configs need and this machine lacks."""
    found: list[Need] = []
    for model_cfg, benchmark_cfg in configs:
        found += [*model(model_cfg), *benchmark(benchmark_cfg)]
    missing = [one for one in found if not one.present]
    said = [one.what if one.what.startswith(one.of) else f"{one.of}: {one.what}" for one in missing]
    return list(dict.fromkeys(said))


def require(model_cfg: Mapping[str, Any], benchmark_cfg: Mapping[str, Any]) -> None:
    """Raise UserError for a checkpoint or data that are not here and that no hub in reach has."""
    from kvbench.benchmarks.usable import require_hub_data
    from kvbench.models.checkpoint import locate

    weights = str(model_cfg.get("weights") or "")
    for finding in model(model_cfg):
        if not finding.present and finding.hub:
            locate(weights, model_cfg.get("revision"))
        elif not finding.present:
            raise UserError(f"{finding.of}: {finding.what}")
    data = benchmark(benchmark_cfg)[0]
    if not data.present and data.hub:
        require_hub_data(benchmark_cfg)
    elif not data.present:
        raise UserError(data.what)


def benchmark(cfg: Mapping[str, Any]) -> list[Need]:
    """Data, videos and programs of one benchmark."""
    name, data = str(cfg["name"]), str(cfg.get("data") or "sets")
    of = f"benchmark {name}"
    found = [_data(of, name, data, cfg)]
    if cfg.get("video_column") and data != "micro":
        from kvbench.benchmarks import video

        root = video.folder(cfg)
        present = root.is_dir() and any(path.suffix in video.SUFFIXES for path in root.iterdir())
        how = f"no video in {root}: run `kvbench fetch benchmark={name}`, or set benchmark.videos=FOLDER."
        found.append(Need(of, f"videos in {root}" if present else how, present))
    unmet = needs.missing(cfg)
    found += [Need(of, sentence, False) for sentence in unmet]
    met = [need for need in needs.names(cfg) if not needs.missing(cfg, only=(need,))]
    return found + [Need(of, need, True) for need in met]


def _data(of: str, name: str, data: str, cfg: Mapping[str, Any]) -> Need:
    if cfg.get("kind") == "folder":
        from kvbench.benchmarks.folder import FolderBenchmark

        try:
            return Need(of, f"data: {FolderBenchmark(cfg).size()} rows in {data}", True)
        except UserError as error:
            return Need(of, str(error), False)
    if data in ("micro", "package"):
        return Need(of, f"data: {data}, made here when needed", True)
    if data == "sets" or paths.is_folder(data):
        from kvbench.benchmarks.loading import local_files
        from kvbench.benchmarks.usable import check_schema

        try:
            files = local_files(cfg, "")
            check_schema(cfg, files or [])
            return Need(of, f"data: {len(files or [])} Parquet files", True)
        except UserError as error:
            return Need(of, str(error), False)
    how = f"run `kvbench fetch benchmark={name}`, or set benchmark.data=FOLDER."
    return _hub(of, "data", "datasets", data, cfg, how)


def model(cfg: Mapping[str, Any], thorough: bool = False) -> list[Need]:
    """The checkpoint of one model; ``thorough`` also reads what set-up converted."""
    name, weights = str(cfg["name"]), str(cfg.get("weights") or "")
    of = f"model {name}"
    if weights == "random":
        return [Need(of, "random weights, made here", True)]
    found = []
    if cfg.get("adapter") == "embedded" or weights == "embedded":
        present = (paths.cache_dir() / "smollm2-135m-instruct").is_dir()
        how = "the small language model is not here: run `kvbench fetch model=embedded`."
        if present and thorough:
            from kvbench.embedded import language

            try:
                language.folder()
            except UserError as error:
                present, how = False, str(error)
        size = None if present else 0.3
        found.append(Need(of, "language model: set up" if present else how, present, size))
    if weights in ("shipped", "embedded"):
        return found
    if paths.is_folder(weights):
        marker = "tower.safetensors" if cfg.get("adapter") == "embedded" else "config.json"
        present = (Path(weights).expanduser() / marker).is_file()
        how = f"no {marker} in {weights}: set model.weights to the folder of a checkpoint."
        return [*found, Need(of, f"weights: {weights}" if present else how, present)]
    how = f"run `kvbench fetch model={name}`, or set model.weights=FOLDER."
    return [*found, _hub(of, "weights", "models", weights, cfg, how)]


def headless(model: dict[str, Any], methods: Iterable[dict[str, Any]]) -> str | None:
    """The sentence for a model without the visual-head scores that one of its methods needs, if so."""
    capacities = [method.get("capacity") or {} for method in methods]
    if model.get("head_scores") or not any(
        capacity.get("name") == "sparsemm" and not capacity.get("scores") for capacity in capacities
    ):
        return None
    name = model["name"]
    return (
        f"sparsemm needs visual-head scores, which model {name} lacks: make them with `kvbench calibrate "
        f"heads model={name}`, name their file or the folder that holds {name}-heads.json with "
        "model.head_scores=, or leave sparsemm out of method=."
    )
