"""Refresh policies compared: fidelity, rates and costs, and terciles of drift.

Every function takes the samples of ``kvbench.analysis.drift.load`` and returns a tidy frame. What cannot
be computed is NaN, with the reason in the column ``note``. Intervals are 95 % intervals over clusters (a
picture with all its questions), see ``kvbench.analysis.resampling``. The analyses are those of the RCR
paper (section on drift, length and cost).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.bootstrap import difference, estimate
from kvbench.analysis.drift import GROUP, KEY, ONE_SHOT, WEIGHTS
from kvbench.analysis.resampling import FEWEST
from kvbench.errors import UserError

if TYPE_CHECKING:
    import pandas

FULL = "fullkv"
GAP_TO = ("infinigen", "exact")
TOO_FEW = "fewer than 3 samples"
NO_INTERVAL = f"fewer than {FEWEST} pictures have no interval"
_INTERVAL = ("value", "low", "high", "n", "clusters", "note")


def fidelity(frame: pandas.DataFrame, against: Sequence[str] = (ONE_SHOT, "rcr", FULL)) -> pandas.DataFrame:
    """Mean value per policy and its paired differences.

    Columns: KEY, against, value, low, high, n, clusters, note. ``against`` is empty for the mean itself, the
    other policy's label for value = mean difference from it, and fullkv for that from the uncompressed
    answer's own value (left out where that is 1 by definition, as for fidelity).
    """
    rows = []
    for group in groups(frame):
        base = {name: chosen(group, name) for name in against if name != FULL}
        whole = scored(group)["full_value"]
        if FULL in against and whole.notna().any() and not (whole == 1).all():
            base[FULL] = FULL
        for policy in labels(group):
            rows.append({**key(group, policy), "against": "", **mean(of(group, policy), "value")})
            for name, other in base.items():
                if other == policy:
                    continue
                named = {**key(group, policy), "against": other or name}
                rows.append({**named, **compare(group, policy, other, f"no cell with refresh={name}")})
    return tidy(rows, [*KEY, "against", *_INTERVAL])


def compare(
    group: pandas.DataFrame, policy: str, other: str | None, missing: str = "missing"
) -> dict[str, Any]:
    """value, low, high, n, clusters, note: the paired mean difference policy - other within a selection."""
    mine = scored(of(group, policy))
    if other == FULL:
        theirs = mine.assign(value=mine["full_value"])
    else:
        theirs = scored(of(group, other)) if other is not None else None
    if theirs is None or theirs.empty:
        return hole(missing if theirs is None else f"{other} is not scored")
    if mine.empty:
        return hole(f"{policy} is not scored")
    try:
        gap = difference(series(mine), series(theirs), (policy, str(other)), clusters=clusters_of(mine))
    except UserError as error:
        return hole(str(error))
    note = "" if gap.clusters >= FEWEST else NO_INTERVAL
    return dict(zip(_INTERVAL, (gap.delta, gap.low, gap.high, gap.n, gap.clusters, note), strict=True))


def rates(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Means over layer-steps of what the traces record: KEY, quantity, value, low, high, n, clusters, note.

    Quantities: refreshed (share of layer-steps), stayed (share of adjacent steps whose most attended prefix
    position is the same), overlap (share of the exact top entries held), drift (attention mass on evicted
    entries); per KV head and step: reads (vectors), dots (full-dimension dot products), held (key
    equivalents on the device). Long answers weigh by their steps; intervals are over clusters.
    """
    rows = []
    for group in groups(frame):
        for policy in labels(group):
            mine = of(group, policy)
            rows += [
                {**key(group, policy), "quantity": name, **mean(mine, name, weight)}
                for name, weight in WEIGHTS.items()
            ]
    return tidy(rows, [*KEY, "quantity", *_INTERVAL])


def terciles(frame: pandas.DataFrame, source: str = ONE_SHOT) -> pandas.DataFrame:
    """Thirds of the samples by mean drift and what each policy does in them.

    Columns: KEY, tercile (1: least drift), n, drift_low, drift_high (the third's range), refreshed, value,
    low, high, then for each policy of GAP_TO the mean of its value minus this policy's: gap_X, gap_X_low,
    gap_X_high; note. A sample's drift is that of policy ``source``, one for all policies, so that a third
    holds the same samples throughout; the one-shot policy's does not depend on what a refresh did.
    """
    rows = []
    for group in groups(frame):
        drift, note = drift_of(group, source)
        order = sorted(drift, key=lambda index: (drift[index], index))
        for tercile, third in enumerate(np.array_split(np.array(order, dtype=int), 3), start=1):
            if note:
                rows += [{**key(group, policy), "tercile": tercile, "note": note} for policy in labels(group)]
                continue
            inside = group[group["index"].isin(third)]
            limits = {"drift_low": drift[third[0]], "drift_high": drift[third[-1]]}
            for policy in labels(group):
                row = {
                    **key(group, policy),
                    "tercile": tercile,
                    **limits,
                    **mean(of(inside, policy), "value"),
                }
                row["refreshed"] = mean(of(inside, policy), "refreshed", "layer_steps")["value"]
                for name in GAP_TO:
                    other = chosen(group, name)
                    gap = compare(inside, other, policy) if other not in (None, policy) else hole("")
                    row |= {f"gap_{name}{end}": gap[key] for key, end in _GAP_ENDS.items()}
                rows.append(row)
    gaps = [f"gap_{name}{end}" for name in GAP_TO for end in _GAP_ENDS.values()]
    columns = [*KEY, "tercile", "n", "drift_low", "drift_high", "refreshed", "value", "low", "high", *gaps]
    return tidy(rows, [*columns, "note"])


_GAP_ENDS = {"value": "", "low": "_low", "high": "_high"}


def groups(frame: pandas.DataFrame) -> Iterator[pandas.DataFrame]:
    """The rows of each selection, whose policies may be compared."""
    for _, group in frame.groupby(GROUP, sort=False):
        yield group


def labels(group: pandas.DataFrame) -> list[str]:
    """The policies of a selection in the store's order, the one-shot selection first."""
    named = group[["policy", "name"]].drop_duplicates()
    return sorted(named["policy"], key=lambda label: label.split(" ")[0] != ONE_SHOT)


def of(group: pandas.DataFrame, policy: str | None) -> pandas.DataFrame:
    """The rows of one policy."""
    return group[group["policy"] == policy]


def scored(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The rows that have a value."""
    return rows[rows["value"].notna()]


def series(rows: pandas.DataFrame, column: str = "value") -> dict[int, float]:
    """A column by sample index, missing values left out."""
    known = rows[rows[column].notna()]
    return {int(index): float(value) for index, value in zip(known["index"], known[column], strict=True)}


def clusters_of(rows: pandas.DataFrame) -> dict[int, str]:
    """Cluster by sample index."""
    known = rows[rows["index"].notna()]
    return {int(index): cluster for index, cluster in zip(known["index"], known["cluster"], strict=True)}


def chosen(group: pandas.DataFrame, name: str) -> str | None:
    """The policy that stands for ``name``: its label, or of several variants the one with most defaults."""
    from kvbench import methods

    if name in set(group["policy"]):
        return name
    variants = group[group["name"] == name].drop_duplicates("policy")
    if variants.empty:
        return None
    usual = {option.name: option.default for option in methods.options("refresh", name)}
    unlike = [
        sum(usual.get(key) != value for key, value in options.items()) for options in variants["options"]
    ]
    return variants["policy"].iloc[int(np.argmin(unlike))]


def drift_of(group: pandas.DataFrame, source: str) -> tuple[dict[int, float], str]:
    """Mean drift by sample index as policy ``source`` recorded it, and why it cannot be used, if so."""
    label = chosen(group, source)
    if label is None:
        return {}, f"no cell with refresh={source} to take the drift from"
    drift = series(of(group, label), "drift")
    if not drift:
        return {}, f"{label} has no traces: run it with trace=true"
    if len(drift) < 3:
        return drift, TOO_FEW
    if len(set(drift.values())) == 1:
        return drift, "the drift is the same in every sample"
    return drift, ""


def hole(note: str) -> dict[str, Any]:
    """An interval's columns where there is none."""
    return dict(zip(_INTERVAL, (math.nan, math.nan, math.nan, 0, 0, note), strict=True))


def mean(rows: pandas.DataFrame, column: str, weight: str | None = None) -> dict[str, Any]:
    """Mean of a policy's column, over the units that ``weight`` counts, with its interval's columns."""
    values = series(rows, column)
    if not values:
        return hole("not scored" if weight is None else "no traces: run with trace=true")
    weights = None if weight is None else series(rows, weight)
    found = estimate(values, column, clusters=clusters_of(rows), weights=weights)
    note = "" if found.clusters >= FEWEST else NO_INTERVAL
    return dict(zip(_INTERVAL, (*astuple(found), note), strict=True))


def key(group: pandas.DataFrame, policy: str) -> dict[str, str]:
    """The columns that name a policy's rows."""
    return {**{name: group[name].iloc[0] for name in GROUP}, "policy": policy}


def tidy(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """Rows as a frame with these columns; counts whole, notes never missing."""
    import pandas

    frame = pandas.DataFrame(rows, columns=list(columns))
    whole = {name: frame[name].fillna(0).astype(int) for name in ("n", "clusters") if name in columns}
    return frame.assign(**whole, note=frame["note"].fillna(""))
