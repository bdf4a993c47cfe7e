"""What huggingface_hub's cache holds, told from its folders: nothing is loaded, and no network is asked."""

from __future__ import annotations

from pathlib import Path


def folder(kind: str, name: str) -> Path:
    """Where huggingface_hub keeps a repository; kind: "models" or "datasets"."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"{kind}--{name.replace('/', '--')}"


def cached(kind: str, name: str) -> list[str]:
    """The revisions of a repository that are here: branches and tags, then commits.

    A checkpoint without its config is a download that broke off: it does not count.
    """
    root = folder(kind, name)
    needed = "config.json" if kind == "models" else "*"
    commits = {path.name for path in root.glob("snapshots/*") if any(path.glob(needed))}
    refs = [path for path in root.glob("refs/**/*") if path.is_file() and path.read_text().strip() in commits]
    return sorted(path.relative_to(root / "refs").as_posix() for path in refs) + sorted(commits)
