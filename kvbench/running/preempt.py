"""What a run does when the machine wants its place back: keep what is answered, and say that it may go on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Preempted(BaseException):
    """SIGTERM or SIGUSR1 arrived.  No Exception, so that no sample is blamed for it."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Turn the first preemption signal into ``Preempted``; further ones do not disturb the way out.

    Does nothing outside the main thread, where Python hands out no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: Any) -> None:
        for name in SIGNALS:
            signal.signal(name, signal.SIG_IGN)
        raise Preempted(signal.Signals(number).name)

    before = {name: signal.signal(name, stop) for name in SIGNALS}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
