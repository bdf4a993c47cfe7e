"""What re-selection did, per decode step and layer: in memory as arrays, on disk as one compact Parquet file.

Columns: `drift` attention mass on evicted prefix entries before the refresh (as the policy measures it; the
exact one for policies that do not), `tau` the threshold it met (NaN without one), `refreshed` 0 or 1,
`reads` vectors per KV head read from the full prefix, `dots` full-dimension dot products per query head
spent on scoring it, `overlap` share of the exact top entries that are held at the attention, `stayed` share
of KV heads whose most attended prefix position is that of the previous step (NaN at the first). `held` is
the key equivalents per KV head that the policy keeps on the device.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.store.files import write_atomic

if TYPE_CHECKING:
    import pandas

FIELDS = ("drift", "tau", "refreshed", "reads", "dots", "overlap", "stayed")
COLUMNS = ("cell", "sample", "step", "layer", *FIELDS, "held")


@dataclass
class Trace:
    """One branch's decode: arrays [steps, layers]. Step t has generated token t (from 0) as query."""

    drift: np.ndarray  # float32
    tau: np.ndarray  # float32
    refreshed: np.ndarray  # uint8
    reads: np.ndarray  # float32
    dots: np.ndarray  # float32
    overlap: np.ndarray  # float32
    stayed: np.ndarray  # float32
    held: float  # key equivalents per KV head

    @classmethod
    def from_values(cls, values: np.ndarray, held: float) -> Trace:
        """From [steps, layers, fields] in the order of FIELDS."""
        columns = {name: np.ascontiguousarray(values[..., i], np.float32) for i, name in enumerate(FIELDS)}
        columns["refreshed"] = columns["refreshed"].astype(np.uint8)
        return cls(**columns, held=float(held))

    @property
    def steps(self) -> int:
        """Decode steps recorded: one fewer than the tokens, since prefill gives the first."""
        return len(self.drift)


def write(path: str | Path, rows: Iterable[tuple[str, Any, Trace]]) -> None:
    """Write (cell, sample, trace) triples to a Parquet file, which appears complete or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    rows = list(rows)
    cells = list(dict.fromkeys(str(cell) for cell, _, _ in rows))
    samples = list(dict.fromkeys(str(sample) for _, sample, _ in rows))
    sizes = [trace.drift.size for *_, trace in rows]

    def codes(known: list[str], which: int) -> pa.Array:
        number = {name: i for i, name in enumerate(known)}
        index = np.repeat(np.array([number[str(row[which])] for row in rows], np.int32), sizes)
        return pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), pa.array(known, pa.string()))

    def joined(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
        return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype)

    shapes = [trace.drift.shape for *_, trace in rows]
    columns = {
        "cell": codes(cells, 0),
        "sample": codes(samples, 1),
        "step": joined([np.repeat(np.arange(steps), layers) for steps, layers in shapes], np.uint16),
        "layer": joined([np.tile(np.arange(layers), steps) for steps, layers in shapes], np.uint16),
    }
    for name in FIELDS:
        dtype = np.uint8 if name == "refreshed" else np.float32
        columns[name] = joined([getattr(trace, name).ravel() for *_, trace in rows], dtype)
    columns["held"] = joined(
        [np.full(size, row[2].held) for row, size in zip(rows, sizes, strict=True)], np.float32
    )
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd")
    write_atomic(path, file.getvalue())


def read(path: str | Path) -> pandas.DataFrame:
    """The file as a DataFrame with COLUMNS; cell and sample are categorical strings."""
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pandas()
