"""What stands behind a name that stays the same: digests for the ``revision`` keys of conf/.

A trained model or a generated data set may change while its name does not.  Its digest is part of a cell's
identity, so answers of an older one are never mixed with those of a newer.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from kvbench import paths
from kvbench.errors import UserError
from kvbench.support import contents

BLOCK, BLOCKS = 1 << 12, 64  # bytes that count of a large file, and in how many places


def weights(folder: str) -> str:
    """Digest of the embedded model: eyes, adapter and head scores (``shipped``, or a folder of its own), and
    the language model below them.
    """
    root = (
        Path(__file__).parents[1] / "embedded" / "weights"
        if folder == "shipped"
        else Path(folder).expanduser()
    )
    total = hashlib.sha256()
    for path in sorted(
        [*root.rglob("*.safetensors"), *root.rglob("adapter_config.json"), *root.glob("head_scores.json")]
    ):
        total.update(path.relative_to(root).as_posix().encode("utf-8"))
        total.update(hashlib.sha256(path.read_bytes()).digest())
    total.update(language("embedded").encode())
    return total.hexdigest()[:10]


def language(weights: str) -> str | None:
    """Digest of the language model that set-up converts, for ``embedded``; None for any other weights."""
    from kvbench.embedded import language as converted

    return converted.revision() if weights == "embedded" else None


def of_folders(model: dict[str, Any], benchmark: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both configs with a digest as ``revision`` where weights or data are a folder: its name says little.

    The embedded model has such a revision already.
    """
    if model.get("adapter") != "embedded" and (found := checkpoint(model.get("weights"))):
        model = {**model, "revision": found}
    if paths.is_folder(str(benchmark.get("data"))) and (found := data(benchmark["data"])):
        benchmark = {**benchmark, "revision": found}
    return model, benchmark


def checkpoint(weights: str | None) -> str | None:
    """Digest of a checkpoint's folder; None for anything else.

    Configs, tokenizer and chat template count whole, weights by name, size and samples: to read all of a
    large one would take minutes. Raises UserError for a file that cannot be read.
    """
    if not paths.is_folder(str(weights)) or not (root := Path(str(weights)).expanduser()).is_dir():
        return None
    small = [path for pattern in ("*.json", "*.jinja", "*.model", "*.txt") for path in root.glob(pattern)]
    large = [*root.glob("*.safetensors"), *root.glob("*.bin")]
    return _digest(root, sorted(small), sorted(large))


def _digest(root: Path, small: list[Path], large: list[Path]) -> str:
    """Of names and contents of small files; of names, sizes and evenly spaced blocks of large ones."""
    total = hashlib.sha256()
    try:
        for path in small:
            total.update(path.relative_to(root).as_posix().encode("utf-8"))
            total.update(hashlib.sha256(path.read_bytes()).digest())
        for path in large:
            size = path.stat().st_size
            total.update(f"{path.relative_to(root).as_posix()} {size}".encode())
            with path.open("rb") as file:
                for place in range(BLOCKS + 1):
                    file.seek(max(0, size - BLOCK) * place // BLOCKS)
                    total.update(file.read(BLOCK))
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): copy the folder {root} again.") from error
    return total.hexdigest()[:10]


def sets() -> str:
    """Digest of the generated data sets."""
    from kvbench.embedded import sets as generated

    return generated.version()


def data(name: str) -> str | None:
    """Digest of data that kvbench draws or ships, or of a folder's files; None for a hub id."""
    if name == "micro":
        from kvbench.benchmarks import micro

        return micro.version()
    if name == "package":
        return contents.texts(Path(__file__).parents[1] / "benchmarks" / "documents")
    if name == "sets":
        return sets()
    root = Path(str(name)).expanduser()
    if not root.is_dir():
        return None
    texts = [*root.glob("index.json"), *root.glob("texts/*.txt")]  # a folder laid out as documents_mini's
    large = list(root.rglob("*.parquet"))
    if rows := [path for path in root.iterdir() if path.suffix in (".jsonl", ".csv")]:  # of benchmark=folder
        texts += rows
        large += [path for path in root.rglob("*") if path.is_file() and path not in rows]
    return _digest(root, sorted(texts), sorted(set(large)))


def last_part(text: str | None) -> str:
    """The last part of a path or hub id."""
    return str(text or "auto").rstrip("/").rpartition("/")[2]


def register() -> None:
    """Make ``${weights_revision:FOLDER}``, ``${language_revision:WEIGHTS}``, ``${sets_revision:}``,
    ``${data_revision:DATA}`` ``${lmms_task:NAME,KEY}``
    and ``${last_part:PATH}`` known.
    """
    from omegaconf import OmegaConf

    from kvbench.benchmarks import catalogue

    OmegaConf.register_new_resolver("weights_revision", weights, replace=True)
    OmegaConf.register_new_resolver("language_revision", language, replace=True)
    OmegaConf.register_new_resolver("sets_revision", sets, replace=True)
    OmegaConf.register_new_resolver("data_revision", data, replace=True)
    OmegaConf.register_new_resolver("lmms_task", catalogue.field, replace=True)
    OmegaConf.register_new_resolver("last_part", last_part, replace=True)
