"""Forget cells: their answers, results and scores leave a folder, and nothing else does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from kvbench.errors import UserError
from kvbench.store import journal, layout
from kvbench.store.files import storage_error, sync_folder


def count(folder: Path, digests: Iterable[str]) -> int:
    """Answers that ``forget`` would delete."""
    wanted = set(digests)
    return sum(
        record.get("cell") in wanted and "error" not in record
        for path in layout.journals(folder)
        for record in journal.read(path)
    )


def forget(folder: Path, digests: Iterable[str]) -> None:
    """Delete every trace of the cells.  Raises UserError while another process writes one of the journals."""
    wanted = set(digests)
    for path in layout.journals(folder):
        with journal.Writer(path):  # the lock, and a journal without torn or damaged lines
            kept = [
                line.data + b"\n" for line in journal.lines(path) if line.record.get("cell") not in wanted
            ]
            temporary = path.with_name(path.name + ".tmp")
            try:
                with open(temporary, "wb") as file:
                    file.writelines(kept)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
                sync_folder(folder)
            except OSError as error:
                raise storage_error(path, error) from error
            finally:
                temporary.unlink(missing_ok=True)
    for part in ("cells", "results", "provenance", "scores", "traces"):
        for digest in wanted:
            target = folder / part / digest
            try:
                target.with_name(digest + ".json").unlink(missing_ok=True)
                shutil.rmtree(target) if target.is_dir() else None
            except OSError as error:
                raise UserError(
                    f"cannot delete {target} ({error.strerror}): check the store's permissions."
                ) from error
