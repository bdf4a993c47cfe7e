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


def register() -> None:
    """Make ``${weights_revision:FOLDER}`` and ``${sets_revision:}`` known to configs."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("weights_revision", weights, replace=True)
    OmegaConf.register_new_resolver("sets_revision", sets, replace=True)
