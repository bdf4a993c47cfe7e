"""Per-sample values as arrays read like the dicts they replace, in memory and on disk."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.benchmarks.base import Scores
from kvbench.benchmarks.series import Series, pack, unpack

VALUES = st.dictionaries(st.integers(0, 50), st.floats(-9, 9))


@given(VALUES)
def test_a_series_is_the_mapping_it_was_made_of(values):
    series = Series.of(values)
    assert series == values and values == series and len(series) == len(values)
    assert list(series.items()) == sorted(values.items())
    assert list(series) == list(series.keys()) == sorted(values)
    assert list(series.values()) == [values[i] for i in sorted(values)]
    for i in range(-1, 52):
        assert (i in series) == (i in values) and series.get(i) == values.get(i)
    with pytest.raises(KeyError):
        series[51]
    assert Series.of(series) is series


@given(VALUES)
def test_columns_come_back_and_the_older_form_too(values):
    columns = json.loads(json.dumps(pack(values)))
    older = {str(index): value for index, value in values.items()}
    for stored in (columns, older):
        index, data = unpack(stored)
        assert dict(zip(index, data, strict=True)) == values and index == sorted(values)
    assert (columns["index"] is None) == (sorted(values) == list(range(len(values))))


def test_scores_of_an_earlier_release_are_read():
    older = {"n": 2, "metrics": {"anls": 0.5}, "per_sample": {"anls": {"1": None, "0": 1.0}}}
    scores = Scores.from_dict({**older, "clusters": {"0": "page 3", "1": "page 4"}})
    assert scores.per_sample["anls"][0] == 1 and math.isnan(scores.per_sample["anls"][1])
    assert scores.clusters == {0: "page 3", 1: "page 4"} and scores.warnings == []
    assert Scores.from_dict(scores.to_dict()).clusters == scores.clusters
