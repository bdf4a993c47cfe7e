"""Bring data sets and checkpoints from the hub, so that everything then runs with HF_HUB_OFFLINE=1."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvbench import paths
from kvbench.errors import UserError
from kvbench.setup import first
from kvbench.support.words import counted

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


def repository(cfg: Mapping[str, Any], kind: str) -> str | None:
    """The hub id behind a config; None when nothing has to be fetched. kind: "model" or "benchmark"."""
    text = str(cfg.get("weights" if kind == "model" else "data") or "")
    return None if text in paths.BUILT_IN or paths.is_folder(text) else text


def fetch(cfg: Mapping[str, Any], kind: str, log: Callable[[str], None]) -> None:
    """Download what one config names, unpack its videos, and load the data once into the datasets cache.

    Raises UserError when the hub does not answer or does not have it.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    name = repository(cfg, kind)
    if name is None:
        make = first.language_model if kind == "model" else first.drawn_sets
        log(f"{kind} {cfg['name']}: {'ready' if make(cfg, log) else 'nothing to fetch'}")
        return
    repo_type = "model" if kind == "model" else "dataset"
    revision = cfg.get("revision") or None
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"HF_HUB_OFFLINE is set, so {name} cannot be fetched: unset it for this command.")
    try:
        info = HfApi().repo_info(
            name, repo_type=repo_type, revision=revision, files_metadata=True, timeout=20
        )
        size = sum(file.size or 0 for file in info.siblings or []) / 1e9
        log(f"{kind} {cfg['name']}: {name} at {info.sha}, {size:.1f} GB")
        folder = Path(snapshot_download(name, repo_type=repo_type, revision=revision))
    except Exception as error:  # network, permission, spelling: one sentence for all
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name} cannot be fetched ({reason}): check the network, the id, and `hf auth login` for gated"
            f" repositories."
        ) from error
    if kind == "benchmark":
        if cfg.get("video_folder"):
            from kvbench.benchmarks import video

            log(f"{unpack(folder, video.folder(cfg))} archives of videos unpacked")
        from kvbench import benchmarks

        log(counted(benchmarks.load(cfg).size(), "sample"))


def unpack(source: Path, target: Path) -> int:
    """Put the videos of every archive under ``source`` flat into ``target``; returns how many there were."""
    target.mkdir(parents=True, exist_ok=True)
    archives = [path for path in sorted(source.rglob("*")) if path.name.endswith(ARCHIVES)]
    for path in archives:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if _is_video(member.filename):
                        (target / Path(member.filename).name).write_bytes(archive.read(member))
        else:
            with tarfile.open(path) as archive:
                for entry in archive:
                    if entry.isfile() and _is_video(entry.name):
                        (target / Path(entry.name).name).write_bytes(archive.extractfile(entry).read())
    return len(archives)


def _is_video(name: str) -> bool:
    from kvbench.benchmarks.video import SUFFIXES

    return name.endswith(SUFFIXES)
