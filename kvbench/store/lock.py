"""Locks between processes that end with their owner, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvbench.errors import UserError
from kvbench.store.files import storage_error


@contextmanager
def locked(path: Path, busy: str = "") -> Iterator[None]:
    """Hold ``path`` (made when missing) with ``flock``, which the kernel drops when its owner dies.

    ``busy`` is the sentence for a lock that another process holds; without one the call waits for it.
    Readers of the store take no lock and never wait.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b")  # noqa: SIM115 - closed below
    except OSError as error:
        raise storage_error(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            raise UserError(busy) from None
        except OSError as error:
            raise storage_error(path, error) from error
        yield
