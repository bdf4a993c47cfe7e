"""An append-only journal of checksummed JSON lines, with one writer and any number of readers.

Each line is one canonical JSON object whose last member is ``"crc":"xxxxxxxx"``, the CRC-32 of the object
without it.  Three things can go wrong with the file, and none of them loses a good record:

* a process that dies while writing leaves a *torn* last line, without its newline: readers ignore it, the
  next writer cuts it off, and the samples in it are done again;
* a *damaged* line, whose checksum is wrong, is passed over and named; the next writer moves it into
  JOURNAL.damaged, and its sample is done again.  Lines carry their own checksum, so the others still count;
* a power failure may lose what was not yet synchronised: at most ``sync`` seconds of work.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from kvbench.errors import UserError
from kvbench.store.files import canonical, storage_error, sync_folder
from kvbench.store.lock import locked

FORMAT = 2  # of records; 1 had no sessions.  Raise it when an older kvbench would misread a new one.
_TAIL = len(b',"crc":"01234567"}')
_BUFFER = 1 << 20  # bytes read at once


def seal(record: dict[str, Any]) -> bytes:
    """One journal line for ``record``, newline included: canonical JSON, then its checksum."""
    payload = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    if b"null" in payload:  # may be a NaN, which orjson lets pass and canonical JSON refuses
        payload = canonical(record).encode("utf-8")
    return payload[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(payload)


def payload(line: bytes) -> bytes | None:
    """The JSON of one line without its newline, or None when its checksum is wrong."""
    text = line[:-_TAIL] + b"}"
    return text if line[-_TAIL:] == b',"crc":"%08x"}' % zlib.crc32(text) else None


def unseal(line: bytes) -> dict[str, Any] | None:
    """The record of one line without its newline, or None when the line is damaged."""
    text = payload(line)
    return None if text is None else orjson.loads(text)


def check_format(record: dict[str, Any], path: Path) -> None:
    """Raise UserError when the record that opens a session is of a newer kvbench."""
    if record.get("format", 1) > FORMAT:
        raise UserError(
            f"{path} was written by a newer kvbench (format {record['format']}, this one reads up to "
            f"{FORMAT}): update kvbench, or run into another store=DIR."
        )


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles meanwhile: records hold none, and among millions it takes longer than reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.unfreeze()  # what is new counts as old, or it would all be searched at once
            gc.enable()


class Line(NamedTuple):
    """One complete line: its number from 1, the bytes without newline, and the record (None: damaged)."""

    number: int
    data: bytes
    record: dict[str, Any] | None


def raw(path: Path, start: int = 0) -> Iterator[bytes]:
    """The complete lines of a journal without newlines, from byte ``start``; a torn tail is left out."""
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below, where only reading can fail
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): check the folder's permissions.") from error
    with file:
        file.seek(start)
        torn = b""
        while chunk := file.read(_BUFFER):
            *whole, torn = (torn + chunk).split(b"\n")
            yield from whole


def lines(path: Path) -> Iterator[Line]:
    """The complete lines of a journal in order, each with its record."""
    for number, data in enumerate(raw(path), start=1):
        yield Line(number, data, unseal(data))


def read(path: Path, damaged: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The good records of a journal in order; ``damaged`` collects a sentence for each bad line."""
    for number, data in enumerate(raw(path), start=1):
        record = unseal(data)
        if record is not None:
            yield record
        elif damaged is not None:
            damaged.append(
                f"{path}, line {number} is damaged and does not count: the next run computes it again."
            )


class Writer:
    """The one writer of a journal; a context manager that holds the lock.

    The lock is ``PATH.lock``.  ``records`` holds what the journal already had, ``notices`` a sentence for
    everything that was cut off or moved away.  Records reach the operating system at once, so they outlive
    the process; they are forced to the disk when the last time was ``sync`` seconds ago, and at the end.
    """

    def __init__(self, path: Path, sync: float = 0.0) -> None:
        self.path = path
        self.sync = sync
        self.records: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self._end = 0
        self._synced = -float("inf")  # monotonic: a clock that jumps must not put off a write

    def __enter__(self) -> Writer:
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                locked(
                    self.path.with_name(self.path.name + ".lock"),
                    f"another kvbench process is writing {self.path}: wait for it to end, or choose another "
                    "store=DIR.",
                )
            )
            try:
                self._open()
            except OSError as error:
                raise storage_error(self.path, error) from error
            stack.callback(self._file.close)
            self._stack = stack.pop_all()
        return self

    def _open(self) -> None:
        fresh = not self.path.exists()
        bad: list[Line] = []
        with uncollected():
            for line in lines(self.path):
                self._end += len(line.data) + 1
                if line.record is None:
                    bad.append(line)
                else:
                    self.records.append(line.record)
        torn = 0 if fresh else self.path.stat().st_size - self._end
        if bad:
            self._set_aside(bad)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by __exit__
        if torn:
            self._file.truncate(self._end)
            self.notices.append(
                f"{self.path}: cut off a torn last record ({torn} bytes); its sample is done again."
            )
        if fresh or torn:
            os.fsync(self._file.fileno())
            sync_folder(self.path.parent)

    def _set_aside(self, bad: list[Line]) -> None:
        """Keep damaged lines in PATH.damaged, and replace the journal by one without them."""
        aside = self.path.with_name(self.path.name + ".damaged")
        with open(aside, "ab") as file:
            file.writelines(line.data + b"\n" for line in bad)
            file.flush()
            os.fsync(file.fileno())
        temporary = self.path.with_name(self.path.name + ".tmp")  # ours alone: we hold the lock
        try:
            with open(temporary, "wb") as file:
                file.writelines(line.data + b"\n" for line in lines(self.path) if line.record is not None)
                self._end = file.tell()
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self.path.parent)
        numbers = ", ".join(str(line.number) for line in bad)
        self.notices.append(
            f"{self.path}: line {numbers} damaged and moved to {aside.name}; what it held is done again."
        )

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Append records as one write.  All of them are in the journal afterwards, or none."""
        data = b"".join(map(seal, records))
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            if time.monotonic() - self._synced >= self.sync:
                self.flush()
        except BaseException as error:
            # A full disk or a signal may have left half a record: the journal stays as it was before.
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            if isinstance(error, OSError):
                raise storage_error(self.path, error) from error
            raise
        self._end += len(data)

    def flush(self) -> None:
        """Force what was appended to the disk."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            try:
                self.flush()
            except OSError as error:
                if kind is None:
                    raise storage_error(self.path, error) from error
