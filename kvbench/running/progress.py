"""Progress of a job: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from kvbench.support.words import counted, duration

INTERVAL = 30.0  # seconds between plain lines


class Progress:
    """A context manager that counts samples from ``done`` to ``total``."""

    def __init__(self, title: str, total: int, done: int, log: Callable[[str], None]) -> None:
        self.title, self.total, self.done, self.log = title, total, done, log
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        self._began = self._told = time.monotonic()
        self._first = self.done
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.progress import Progress as Bars

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._task = self._bar.add_task(self.title, total=self.total, completed=self.done)
            self._bar.start()
        elif self.done < self.total:
            self.log(self._line())
        return self

    def _line(self) -> str:
        return f"{self.title}: {self.done} of {counted(self.total, 'sample')} done"

    def advance(self) -> None:
        """One more sample."""
        self.done += 1
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)
        elif now - self._told >= INTERVAL and self.done < self.total:
            self._told = now
            left = (now - self._began) / (self.done - self._first) * (self.total - self.done)
            self.log(f"{self._line()}, about {duration(left)} left")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self.done > self._first:
            self.log(f"{self._line()} after {duration(time.monotonic() - self._began)}")
