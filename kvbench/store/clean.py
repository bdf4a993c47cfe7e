"""Forget cells: their answers, results and scores leave a folder, and nothing else does."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kvbench.errors import UserError
from kvbench.store import journal, layout
from kvbench.store.files import pretty, storage_error, sync_folder, write_atomic
from kvbench.store.responses import Group, group_of
from kvbench.store.samples import samples_path


def count(folder: Path, digests: Iterable[str]) -> int:
    """Answers that ``forget`` would delete."""
    wanted = set(digests)
    return sum(
        record.get("cell") in wanted and "error" not in record
        for path in layout.journals(folder)
        for record in journal.read(path)
    )


def forget(folder: Path, digests: Iterable[str]) -> None:
    """Delete every trace of the cells, and what only they had: the list of their samples, and how many.

    Raises UserError while another process writes one of the journals.
    """
    wanted = set(digests)
    every = list(layout.cells_of(folder))
    left = [cell for cell in every if cell.digest not in wanted]
    groups = {(cell.seed, cell.prompt) for cell in left}
    for path in layout.journals(folder):
        with journal.Writer(path):  # the lock, and a journal without torn or damaged lines
            _rewrite(path, lambda record: _stays(record, wanted, groups))
    for part in ("cells", "results", "provenance", "scores", "traces"):
        for digest in wanted:
            _delete((folder / part / digest).with_name(digest + ".json"), folder / part / digest)
    _forget_retained(folder, wanted)
    kept = {samples_path(folder, cell.config["benchmark"]) for cell in left}
    _delete(*({samples_path(folder, cell.config["benchmark"]) for cell in every} - kept))


def _stays(record: dict[str, Any], wanted: set[str], groups: set[Group]) -> bool:
    """Whether a record is of another cell, or says how many samples others were asked."""
    if "size" in record:
        return bool(groups) if (group := group_of(record)) is None else group in groups
    return record.get("cell") not in wanted


def _rewrite(path: Path, stays: Callable[[dict[str, Any]], bool]) -> None:
    """Keep some of a journal's lines, as they are."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.writelines(line.data + b"\n" for line in journal.lines(path) if stays(line.record))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _forget_retained(folder: Path, wanted: set[str]) -> None:
    """Take the cells out of retained/INDEX.json, which holds those of a sample together."""
    for path in (folder / "retained").glob("*.json"):
        try:
            document = json.loads(path.read_text("utf-8"))
        except ValueError:
            _delete(path)  # torn: `kvbench retained` makes it again
            continue
        shares = {digest: share for digest, share in document["cells"].items() if digest not in wanted}
        if shares:
            write_atomic(path, pretty({**document, "cells": shares}))
        else:
            _delete(path)


def _delete(*targets: Path) -> None:
    """Remove files and folders that are there."""
    for target in targets:
        try:
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot delete {target} ({error.strerror}): check the store's permissions."
            ) from error
