"""What ``kvbench analyze drift`` shows of each selection: one table to read per analysis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvbench.analysis import policies
from kvbench.analysis.drift import GROUP, ONE_SHOT
from kvbench.rendering import MISSING, Record, plain

if TYPE_CHECKING:
    import pandas


def sections(frames: dict[str, pandas.DataFrame], metric: str) -> Iterator[Record]:
    """Of each selection a heading, then its tables."""
    import pandas

    for names, _ in frames["samples"].groupby(GROUP, sort=False):
        mine = {
            name: frame[(frame[GROUP] == list(names)).all(axis=1)]
            for name, frame in frames.items()
            if name != "samples"
        }
        order = list(dict.fromkeys(mine["fidelity"]["policy"]))
        traced = frames["rates"]
        here = (traced[["model", "benchmark"]] == list(names[:2])).all(axis=1)
        whole = traced[here & traced["selection"].str.startswith(policies.FULL)]
        yield Record(" · ".join(names), [], [])
        yield from (
            _fidelity(mine["fidelity"], order, metric),
            _rates(pandas.concat([mine["rates"], whole]), [*order, *dict.fromkeys(whole["policy"])]),
            _terciles(mine["terciles"], order),
            _correlations(mine["correlations"], order),
            _tau(mine["tau"]),
            _decisions(mine["decisions"]),
        )


def _words(title: str, columns: list[str], rows: list[list[str]], notes: list[str]) -> Record:
    return plain(title, columns, rows, notes, left=len(columns))


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else MISSING


def _significant(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else MISSING


def _range(low: float, high: float, sign: str = "") -> str:
    return f" [{low:{sign}.3f}, {high:{sign}.3f}]" if math.isfinite(low) else ""


def _signed(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return MISSING
    return f"{value:+.3f}{_range(low, high, '+')}{'*' if low > 0 or high < 0 else ''}"


def _notes(frame: pandas.DataFrame) -> list[str]:
    """Reasons of holes, each with the policies it holds for."""
    found: dict[str, list[str]] = {}
    for _, row in frame[frame["note"] != ""].iterrows():
        names = found.setdefault(row["note"], [])
        if row.get("policy") and row["policy"] not in names:
            names.append(row["policy"])
    return [f"{', '.join(names)}: {note}" if names else note for note, names in found.items()]


def _fidelity(frame: pandas.DataFrame, order: list[str], metric: str) -> Record:
    others = {other for other in frame["against"] if other}
    others = sorted(others, key=lambda name: (name == policies.FULL, name.split(" ")[0] != ONE_SHOT, name))
    rows = []
    for policy in order:
        mine = frame[frame["policy"] == policy].set_index("against")
        mean = mine.loc[""]
        row = [policy, str(mean["n"]), _number(mean["value"]) + _range(mean["low"], mean["high"])]
        for other in others:
            if other not in mine.index:
                row.append("")
                continue
            row.append(_signed(*mine.loc[other, ["value", "low", "high"]]))
        rows.append(row)
    title = f"{metric} by policy, paired differences, [95 % intervals]; * excludes 0"
    return _words(title, ["policy", "n", "mean", *(f"− {name}" for name in others)], rows, _notes(frame))


_RATE_TITLES = {
    "refreshed": "refreshed",
    "stayed": "same top entry",
    "overlap": "exact top held",
    "drift": "drift",
    "reads": "reads",
    "dots": "dot products",
    "held": "keys held",
}


def _rates(frame: pandas.DataFrame, order: list[str]) -> Record:
    rows = []
    for policy in order:
        mine = frame[frame["policy"] == policy].set_index("quantity")
        row = [policy]
        for name in ("refreshed", "stayed"):
            limits = _range(mine.loc[name, "low"], mine.loc[name, "high"])
            row.append(_number(mine.loc[name, "value"]) + limits)
        row += [_number(mine.loc[name, "value"]) for name in ("overlap", "drift")]
        row += [_number(mine.loc[name, "value"], 1) for name in ("reads", "dots", "held")]
        rows.append(row)
    title = "shares of layer-steps, attention mass on evicted entries, cost per KV head and step"
    return _words(title, ["policy", *_RATE_TITLES.values()], rows, _notes(frame))


def _terciles(frame: pandas.DataFrame, order: list[str]) -> Record:
    rows = []
    for policy in order:
        for _, row in frame[frame["policy"] == policy].iterrows():
            gaps = [
                _signed(*(row[f"gap_{name}{end}"] for end in ("", "_low", "_high")))
                for name in policies.GAP_TO
            ]
            limits = f"{_significant(row['drift_low'])} to {_significant(row['drift_high'])}"
            mean = _number(row["value"])
            rows.append(
                [
                    policy,
                    f"{row['tercile']} ({limits})",
                    str(row["n"]),
                    _number(row["refreshed"]),
                    mean,
                    *gaps,
                ]
            )
    heads = [f"{name} −" for name in policies.GAP_TO]
    return _words(
        "thirds of the samples by mean drift",
        ["policy", "third (drift)", "n", "refreshed", "mean", *heads],
        rows,
        _notes(frame),
    )


def _correlations(frame: pandas.DataFrame, order: list[str]) -> Record:
    factors = ("drift", "own_drift", "length")
    rows = []
    for policy in order:
        mine = frame[frame["policy"] == policy]
        for name in dict.fromkeys(mine["gap_to"]):
            here = mine[mine["gap_to"] == name].set_index("factor")
            cells = [
                _signed(*here.loc[factor, ["rho", "low", "high"]])
                + (f" p={_significant(here.loc[factor, 'p'])}" if here.loc[factor, "p"] >= 0 else "")
                for factor in factors
            ]
            rows.append([policy, name, str(here["n"].max()), *cells])
    titles = ["drift", "its own drift", "output length"]
    title = "Spearman's ρ of the gap to a policy, per sample"
    return _words(title, ["policy", "gap to", "n", *titles], rows, _notes(frame))


def _tau(frame: pandas.DataFrame) -> Record:
    """τ at steps 0, 1, 2, 4, 8, ... and the last."""
    rows = []
    for policy, mine in frame.groupby("policy", sort=False):
        last = mine["step"].max()
        shown = {0, last} | {2**power for power in range(int(last).bit_length())}
        for _, row in mine[mine["step"].isin(shown)].iterrows():
            spread = [_significant(row[name]) for name in ("mean", "q10", "q25", "q50", "q75", "q90")]
            rows.append([policy, str(row["step"]), str(row["samples"]), *spread])
    notes = [] if rows else ["no traces of a policy with a threshold: run refresh=rcr with trace=true"]
    columns = ["policy", "step", "n", "mean", "10 %", "25 %", "median", "75 %", "90 %"]
    return _words("τ over decode steps: mean and quantiles over samples", columns, rows, notes)


def _decisions(frame: pandas.DataFrame) -> Record:
    rows = []
    for _, row in frame.iterrows():
        gap = _signed(row["value"], row["low"], row["high"])
        splits = f"{row['development']} + {row['test']}, {row['overlap']} + {row['shared_pictures']} shared"
        verdict = row["verdict"] or MISSING
        rows.append(
            [row["component"], row["chosen"] or MISSING, row["reference"] or MISSING, gap, verdict, splits]
        )
    title = "decision rule: chosen on the development split, confirmed on the test split"
    columns = [
        "component",
        "chosen",
        "reference",
        "difference (test)",
        "verdict",
        "splits (samples, pictures)",
    ]
    notes = _notes(frame) if rows else ["no component has several candidates"]
    return _words(title, columns, rows, notes)
