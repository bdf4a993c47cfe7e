"""Values by sample index as two arrays: a large store holds millions of them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import numpy as np


class Series(Mapping[int, float]):
    """A read-only mapping from sample index to value: ``index`` [n] int64 ascending, ``data`` [n] float64."""

    __slots__ = ("data", "index")

    def __init__(self, index: np.ndarray, data: np.ndarray) -> None:
        self.index, self.data = index, data

    @classmethod
    def of(cls, values: Mapping[int, float]) -> Series:
        """Any mapping as a series; a series as it is."""
        if isinstance(values, Series):
            return values
        index = np.array(sorted(values), np.int64)
        return cls(index, np.array([values[i] for i in index.tolist()], np.float64))

    def __getitem__(self, sample: int) -> float:
        place = int(np.searchsorted(self.index, sample))
        if place == len(self.index) or self.index[place] != sample:
            raise KeyError(sample)
        return float(self.data[place])

    def __iter__(self) -> Iterator[int]:
        return iter(self.index.tolist())

    def __len__(self) -> int:
        return len(self.index)

    # The views of a dict: those of Mapping look every sample up again.
    def keys(self) -> KeysView[int]:
        return dict.fromkeys(self.index.tolist()).keys()

    def items(self) -> ItemsView[int, float]:
        return dict(zip(self.index.tolist(), self.data.tolist(), strict=True)).items()

    def values(self) -> ValuesView[float]:
        return dict(zip(self.index.tolist(), self.data.tolist(), strict=True)).values()


def pack(values: Mapping[int, Any]) -> dict[str, Any]:
    """JSON columns of values by sample index; no index where it counts up from 0."""
    order = sorted(values)
    index = None if order == list(range(len(order))) else order
    return {"index": index, "value": [values[i] for i in order]}


def unpack(columns: Mapping[str, Any]) -> tuple[list[int], list[Any]]:
    """Indices and values of ``pack``, or of an object with an index a key, as older scores have it."""
    if "value" not in columns:
        pairs = sorted((int(index), value) for index, value in columns.items())
        return [index for index, _ in pairs], [value for _, value in pairs]
    values = columns["value"]
    return list(range(len(values))) if columns["index"] is None else columns["index"], values
