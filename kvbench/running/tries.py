"""One sample of a job: its prompt to every cell that lacks an answer, again where a further try may help.

One bad method is one bad method: the others' answers of the sample are recorded. What the user has to fix
(a UserError) does not change by trying again.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench import memory, store
from kvbench.errors import SetupError, Unanswerable, UserError, without_frames
from kvbench.planning.plan import Job
from kvbench.running import staged
from kvbench.support import masking


class DataGone(Exception):
    """A file of the data set that existed when the run began does not any more."""


@dataclass
class Tries:
    """How the samples of a job are asked, and where what comes of it is written."""

    job: Job
    adapter: Any
    methods: dict[str, Any]  # by the digests of their cells
    ask: Callable[..., list[Any]]  # (inputs, methods, **settings) -> an answer or an exception per method
    benchmark: Any
    record: Callable[[list[dict[str, Any]]], None]
    responses: store.Responses
    session: str
    log: Callable[[str], None]

    @property
    def excludes(self) -> bool:
        """Whether a sample that cannot be answered is left out of all cells."""
        return self.job.config["benchmark"].get("unreadable") == "exclude"

    def answer(self, sample: Any, images: Future[Any], cells: list[store.Cell]) -> tuple[int, bool]:
        """(new answers, whether every cell has one now).

        Raises UserError when no later sample could be answered either.
        """
        new, whole = 0, True
        for attempt in range(self.job.config["retries"] + 1):
            started = time.monotonic()
            # A further try reads the images again: the first may have failed for them.
            found = self._try(sample, sample.images if attempt else images.result, cells)
            seconds = round(time.monotonic() - started, 4)
            pairs = list(zip(cells, found, strict=True))
            new += self._record(sample, [p for p in pairs if not isinstance(p[1], Exception)], seconds)
            failed = [p for p in pairs if isinstance(p[1], Exception)]
            self._tell(sample, failed, attempt)
            cells = [cell for cell, error in failed if not isinstance(error, UserError)]
            lost = [e for _, e in failed if not (self.excludes and isinstance(e, Unanswerable))]
            whole = whole and len(cells) == len(lost)
            if not cells:
                return new, whole
        return new, False

    def _try(self, sample: Any, read: Callable[[], Any], cells: list[store.Cell]) -> list[Any]:
        """Per cell its answer, or the exception that came in its place."""
        try:
            _seed(self.job.config["seed"], sample.index)
            try:
                pictures = read()
            except FileNotFoundError as error:
                path = getattr(error, "path", None) or error.filename
                if self.excludes and _others_are_there(path):
                    raise Unanswerable(f"{path} is missing: fetch it again.") from error
                raise DataGone(path or str(error)) from error
            asked = [self.methods[cell.digest] for cell in cells]
            answers = staged.answers(self.ask, self.adapter, self.benchmark, sample, pictures, asked)
            if len(answers) != len(cells):
                raise RuntimeError(f"{len(cells)} methods gave {len(answers)} answers")
            return [self._traced(*pair, sample.index) for pair in zip(cells, answers, strict=True)]
        except SetupError:
            raise
        except DataGone as gone:
            # No sample's fault: every later one would fail as well.
            name = self.job.config["benchmark"]["name"]
            raise UserError(
                f"the data of benchmark {name} vanished at sample {sample.index} ({gone}): restore it, and "
                "the same command continues."
            ) from gone
        except Exception as error:  # recorded as what it is, never turned into an answer
            return [without_frames(error)] * len(cells)

    def _traced(self, cell: store.Cell, answer: Any, index: int) -> Any:
        """The answer, its trace written; a trace of another answer than the stored one is refused."""
        if isinstance(answer, Exception) or not self.job.config["trace"]:
            return answer
        known = self.responses.answers[cell.digest].get(index)
        if known is not None and known["tokens"] != [int(token) for token in answer.tokens]:
            return UserError(
                f"{cell.method} on {cell.benchmark} no longer gives the stored answer to sample {index}, "
                "which a trace would then not describe: trace into another store=DIR."
            )
        store.write_trace(cell, index, answer.trace)
        return answer

    def _record(self, sample: Any, answered: list[tuple[store.Cell, Any]], seconds: float) -> int:
        records = [
            {**_answer(cell, sample, answer, seconds), "session": self.session}
            for cell, answer in answered
            if sample.index not in self.responses.answers[cell.digest]  # else it lacked a trace only
        ]
        self.record(records)
        return len(records)

    def _tell(self, sample: Any, failed: list[tuple[store.Cell, Exception]], attempt: int) -> None:
        """Record what failed, and say each failure once."""
        records = [
            _error(cell, sample, _failure(error), attempt) | self._permanent(error) for cell, error in failed
        ]
        said = dict.fromkeys("{type}: {message}".format(**record["error"]) for record in records)
        self.record(records)
        for words in said:
            self.log(f"{self.job.title}, sample {sample.index}, try {attempt + 1}: {words}")
        if any(memory.ran_out(error) for _, error in failed):
            memory.give_back()

    def _permanent(self, error: Exception) -> dict[str, bool]:
        """What a record of an error says besides it."""
        if not isinstance(error, Unanswerable):
            return {}
        return {"permanent": True, **({"excluded": True} if self.excludes else {})}


def _others_are_there(path: str | None) -> bool:
    """Whether a missing file's folder still holds something: then it alone is missing, not the data set."""
    folder = Path(path).parent if path else None
    return folder is not None and folder.is_dir() and any(folder.iterdir())


def prefetched(samples: list[Any]) -> Iterator[tuple[Any, Future[Any]]]:
    """Each sample with its images; the next sample's are decoded in the background meanwhile."""
    if not samples:
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="images") as pool:
        following = pool.submit(samples[0].images)
        for number, sample in enumerate(samples):
            images = following
            if number + 1 < len(samples):
                following = pool.submit(samples[number + 1].images)
            yield sample, images


def _failure(error: Exception) -> dict[str, str]:
    message = masking.mask(str(error))[:2000]
    if memory.ran_out(error):
        message += " [fewer branches at once did not help: use a larger device]"
    if isinstance(error, Unanswerable):
        message += (
            " [trying again does not help: benchmark.unreadable=exclude leaves the sample out of all cells]"
        )
    return {"type": type(error).__name__, "message": message}


def _answer(cell: store.Cell, sample: Any, answer: Any, seconds: float) -> dict[str, Any]:
    """The journal's record of an answer; of two stages, what it says of prompt and cache is the last's."""
    first = {} if sample.then is None else {"reasoning": answer.reasoning}
    first |= {"fitted": answer.fitted} if answer.fitted else {}
    return {
        "cell": cell.digest,
        "sample": sample.id,
        "index": sample.index,
        "text": answer.text,
        **first,
        "tokens": [int(token) for token in answer.tokens],
        "stopped": answer.stopped,
        "prompt_length": answer.prompt_length,
        "kept": store.pack_kept(answer.kept),
        "seconds": seconds,
    }


def _error(cell: store.Cell, sample: Any, failure: dict[str, str], attempt: int) -> dict[str, Any]:
    return {
        "cell": cell.digest,
        "sample": sample.id,
        "index": sample.index,
        "error": failure,
        "attempt": attempt + 1,
    }


def _seed(seed: int, index: int) -> None:
    """Seed by sample, so that an answer does not depend on which samples ran before it."""
    value = seed * 1_000_003 + index
    random.seed(value)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(value)
