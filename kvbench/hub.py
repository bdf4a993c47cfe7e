"""What huggingface_hub's cache holds, told from its folders: nothing is loaded, and no network is asked."""

from __future__ import annotations

from pathlib import Path


def folder(kind: str, name: str) -> Path:
    """Where huggingface_hub keeps a repository; kind: "models" or "datasets"."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"{kind}--{name.replace('/', '--')}"


def cached(kind: str, name: str) -> list[str]:
    """The revisions of a repository that are here: branches and tags, then commits."""
    root = folder(kind, name)
    refs = [path.relative_to(root / "refs").as_posix() for path in root.glob("refs/**/*") if path.is_file()]
    return sorted(refs) + sorted(path.name for path in root.glob("snapshots/*"))
