"""Which Parquet files of a folder are a benchmark's split: one set, whole, no other split in its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kvbench.errors import UserError

SPLITS = {"train", "training", "test", "testing", "testmini", "validation", "dev", "eval", "lite"}
_ALIKE = {"val": "validation", "valid": "validation"}
_SHARD = re.compile(r"-(\d+)-of-(\d+)$")
_SHOWN = 6  # names that a sentence lists


def split_files(folder: Path, split: str, name: str) -> list[str]:
    """Absolute paths of the split's files under ``folder``; of all files where ``split`` is empty.

    A file is the split's when its name (before ``-00000-of-00006``) or its folder says so; where no name says
    of any split, all files of the one folder are. Raises UserError, naming what was found, for several sets,
    another split alone, or a part of a set. name: the benchmark, for the sentence.
    """
    files = sorted(folder.rglob("*.parquet"))
    if files and split:
        files = _of_split(files, split) or _unnamed(files, folder, split, name)
        _one_set(files, folder, split, name)
    return [str(file.resolve()) for file in files]


def known_rows(folder: Path) -> int | None:
    """Rows of a folder that holds one split alone, from the files' own footers; None: not known."""
    import pyarrow
    import pyarrow.parquet

    files = sorted(folder.rglob("*.parquet"))
    if not files or len({(file.parent, _label(file)) for file in files}) > 1:
        return None
    try:
        return sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)
    except (pyarrow.ArrowInvalid, OSError):
        return None


def _label(file: Path) -> str:
    """A file's name without suffix and shard: ``validation`` of ``validation-00000-of-00006.parquet``."""
    return _SHARD.sub("", file.stem)


def _total(file: Path) -> str:
    """The digits after -of-, empty without."""
    shard = _SHARD.search(file.stem)
    return shard.group(2) if shard else ""


def _words(text: str) -> list[str]:
    found = re.findall(r"[a-z0-9]+", text.lower())
    return [_ALIKE.get(word, word) for word in found]


def _of_split(files: Sequence[Path], split: str) -> list[Path]:
    """Files that are named after the split, else those that have it as a word of their name or folder."""
    wanted = "".join(_words(split))
    exact = [file for file in files if "".join(_words(_label(file))) == wanted]
    loose = [file for file in files if wanted in _words(_label(file)) or _words(file.parent.name) == [wanted]]
    return exact or loose


def _unnamed(files: list[Path], folder: Path, split: str, name: str) -> list[Path]:
    """All files, if none is named after another split."""
    other = [file for file in files if SPLITS & {*_words(_label(file)), *_words(file.parent.name)}]
    if other:
        raise UserError(
            f"benchmark {name} asks the split {split}, but {folder} holds {_listed(other, folder)} only: set"
            f" benchmark.data to a folder with {split}-*.parquet."
        )
    return files


def _one_set(files: Sequence[Path], folder: Path, split: str, name: str) -> None:
    """Raise UserError unless the files are the shards of one set, none missing."""
    folders = sorted({file.parent for file in files})
    if len(folders) > 1:
        raise UserError(
            f"benchmark {name} finds several sets in {folder} ({_listed(folders, folder)}), of which it asks"
            " one: set benchmark.data to its folder."
        )
    labels = sorted({(_label(file), _total(file)) for file in files})
    named = SPLITS & {word for label, _ in labels for word in _words(label)}
    if len(labels) > 1 and named:
        raise UserError(
            f"benchmark {name} finds several sets of the split {split} in {folder}"
            f" ({_listed(files, folder)}): leave one of them there."
        )
    for label, total in labels:
        here = sum(_label(file) == label for file in files)
        if total and here != int(total):
            raise UserError(
                f"{folder} holds {here} of the {int(total)} files {label}-*-of-{total}.parquet of benchmark"
                f" {name}: fetch the others, or rename those that are there (no -of-) to ask a part of it."
            )


def _listed(paths: Sequence[Path], folder: Path) -> str:
    names = [path.relative_to(folder).as_posix() for path in paths]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
