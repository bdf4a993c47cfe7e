"""An append-only journal of checksummed JSON lines, with one writer and any number of readers.

Each line is one canonical JSON object whose last member is ``"crc":"xxxxxxxx"``, the CRC-32 of the object
without it. A process that dies while writing leaves a torn last line: readers ignore it and the next writer
cuts it off, so the samples in it are simply done again.  A bad line that is followed by others cannot come
from a crash: it is refused with its line number, because everything after it would be guesswork.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kvbench.errors import UserError
from kvbench.store.files import canonical, storage_error, sync_folder

_TAIL = len(b',"crc":"01234567"}')


def seal(record: dict[str, Any]) -> bytes:
    """One journal line for ``record``, newline included."""
    payload = canonical(record).encode("utf-8")
    return payload[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(payload)


def unseal(line: bytes) -> dict[str, Any] | None:
    """The record of one line without its newline, or None when the line is damaged."""
    if len(line) <= _TAIL or not line.endswith(b'"}') or line[-_TAIL:-10] != b',"crc":"':
        return None
    payload = line[:-_TAIL] + b"}"
    if b"%08x" % zlib.crc32(payload) != line[-10:-2]:
        return None
    return json.loads(payload)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal in order.  A torn tail ends the stream; damage before it raises UserError."""
    for record, _ in _scan(path):
        yield record


def _scan(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Records with the offset at which each ends."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, where only reading can fail
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): check the folder's permissions.") from error
    end = 0
    with file:
        damaged: int | None = None
        for number, line in enumerate(file, start=1):
            if damaged is not None:
                raise UserError(
                    f"{path}, line {damaged} is damaged and other lines follow: restore the file, or delete "
                    "that line to compute its sample again."
                )
            record = unseal(line[:-1]) if line.endswith(b"\n") else None
            if record is None:
                damaged = number
                continue
            end += len(line)
            yield record, end


class Writer:
    """The one writer of a journal; a context manager that holds the lock.

    The lock is an ``flock`` on ``PATH.lock``: the kernel drops it when its owner dies, however that happens.
    ``records`` holds what the journal already had, ``notice`` a sentence when a torn tail was cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self.notice: str | None = None
        self._end = 0

    def __enter__(self) -> Writer:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path.with_name(self.path.name + ".lock"), "a+b")  # noqa: SIM115
        except OSError as error:
            raise storage_error(self.path, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise UserError(
                f"another kvbench process is writing {self.path}: wait for it to end, or choose another "
                "store=DIR."
            ) from None
        except OSError as error:
            self._lock.close()
            raise storage_error(self.path, error) from error
        try:
            self._open()
        except BaseException:
            self._lock.close()
            raise
        return self

    def _open(self) -> None:
        for record, end in _scan(self.path):
            self.records.append(record)
            self._end = end
        try:
            fresh = not self.path.exists()
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by __exit__
            excess = os.fstat(self._file.fileno()).st_size - self._end
            if excess:
                self._file.truncate(self._end)
                self.notice = (
                    f"{self.path}: cut off a torn last record ({excess} bytes); its sample is done again."
                )
            if fresh or excess:
                os.fsync(self._file.fileno())
                sync_folder(self.path.parent)
        except OSError as error:
            raise storage_error(self.path, error) from error

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Append records as one write, and return when they are on the disk."""
        data = b"".join(map(seal, records))
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # A full disk may have taken half a record: leave the journal as it was before this call.
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise storage_error(self.path, error) from error
        self._end += len(data)

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._lock.close()
