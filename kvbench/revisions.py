"""What stands behind a name that stays the same: digests for the ``revision`` keys of conf/.

A trained model or a generated data set may change while its name does not.  Its digest is part of a cell's
identity, so answers of an older one are never mixed with those of a newer.
"""

from __future__ import annotations

import hashlib
from pathlib import Path


def weights(folder: str) -> str:
    """Digest of the embedded model's weights and head scores: ``shipped``, or a folder of its own."""
    root = (
        Path(__file__).parent / "embedded" / "weights" if folder == "shipped" else Path(folder).expanduser()
    )
    total = hashlib.sha256()
    for path in sorted(
        [*root.rglob("*.safetensors"), *root.rglob("adapter_config.json"), *root.glob("head_scores.json")]
    ):
        total.update(path.relative_to(root).as_posix().encode("utf-8"))
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:10]


def sets() -> str:
    """Digest of the generated data sets."""
    from kvbench.embedded import sets as generated

    return generated.version()


def data(name: str) -> str | None:
    """Digest of data that kvbench draws or ships; None for a hub id or a folder: their names stand."""
    if name == "micro":
        from kvbench.benchmarks import micro

        return micro.version()
    if name == "package":
        root = Path(__file__).parent / "benchmarks" / "documents"
        total = hashlib.sha256()
        for path in sorted([*root.glob("*.json"), *root.glob("texts/*.txt")]):
            total.update(path.name.encode("utf-8"))
            total.update(path.read_bytes())
        return total.hexdigest()[:10]
    return sets() if name == "sets" else None


def register() -> None:
    """Make ``${weights_revision:FOLDER}``, ``${sets_revision:}``, ``${data_revision:DATA}`` known."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("weights_revision", weights, replace=True)
    OmegaConf.register_new_resolver("sets_revision", sets, replace=True)
    OmegaConf.register_new_resolver("data_revision", data, replace=True)
