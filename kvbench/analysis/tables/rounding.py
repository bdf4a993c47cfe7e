"""What rounded differently among a table's cells: sums in 16 bits by the batch, on a CPU by the threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.analysis.results import Entry
from kvbench.store import told

ALONE = "one branch at a time"  # in versions.decode, of decode.invariant=true


def lines(mine: Sequence[Entry]) -> list[str]:
    """A sentence for answers in 16 bits whose batch held several branches, and one for unequal threads."""
    runs = [run for entry in mine if entry.scores is not None for run in told(entry.cell)]
    batches = [run for run in runs if _by_batch(run)]
    said = []
    if batches:
        dtypes = " and ".join(sorted({run["dtype"] for run in batches}))
        how = sorted({_decode(run) or "several together" for run in batches})
        said.append(
            f"decoded in {dtypes}, branches of a sample in one batch ({'; '.join(how)}): a near tie may fall "
            "otherwise in another batch; decode.invariant=true decodes one at a time."
        )
    threads = sorted({run["threads"] for run in runs if run.get("threads")})
    if len(threads) > 1:
        said.append(
            f"answered with {', '.join(map(str, threads[:-1]))} and {threads[-1]} threads, which round sums "
            "in another order: realised entries and answers may differ at near ties."
        )
    return said


def _decode(run: dict[str, Any]) -> str:
    return (run.get("versions") or {}).get("decode") or ""


def _by_batch(run: dict[str, Any]) -> bool:
    return run.get("dtype") in ("bfloat16", "float16") and ALONE not in _decode(run)
