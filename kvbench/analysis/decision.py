"""The decision rule fixed in advance: choose on a development split, confirm on the test split.

Of the candidates the one with the highest mean on the development samples is chosen. It is confirmed when,
on the test samples alone, the 95 % interval of its paired difference from the reference excludes 0 from
above. Samples (or pictures) in both splits would let the choice see the confirmation, so any overlap makes
the rule void (the RCR paper's splits share two images).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbench.analysis import policies
from kvbench.analysis.drift import GROUP, ONE_SHOT
from kvbench.analysis.policies import of, scored
from kvbench.errors import UserError

if TYPE_CHECKING:
    import pandas

# Oracles read the uncompressed answer or score the whole prefix: bounds to compare with, not candidates.
_BOUNDS = (ONE_SHOT, "oracle", "exact")
COLUMNS = [
    *(*GROUP, "component", "candidates", "chosen", "reference", "verdict"),
    *("value", "low", "high", "n", "clusters", "development", "test", "overlap", "shared_pictures", "note"),
]


@dataclass(frozen=True)
class Splits:
    """Sample ids chosen on, and confirmed on (None: all samples that are not chosen on)."""

    development: frozenset[str]
    test: frozenset[str] | None


def split(units: Iterable[str], share: float = 0.25, seed: int = 0) -> tuple[set[str], set[str]]:
    """(development, test): each unit falls by a hash of the seed and its name alone.

    So a unit keeps its side when others are added, and both sides are the same on every machine. About
    ``share`` of the units are development.
    """
    development, test = set(), set()
    for unit in units:
        digest = hashlib.sha256(f"{seed}:{unit}".encode()).digest()
        (development if int.from_bytes(digest[:8], "big") < share * 2**64 else test).add(unit)
    return development, test


def splits_of(group: pandas.DataFrame, share: float = 0.25, seed: int = 0) -> Splits:
    """Samples split by picture, so that questions about one picture stay together."""
    known = group[group["sample"].notna()]
    development, _ = split(set(known["cluster"]), share, seed)
    chosen = known["cluster"].isin(development)
    return Splits(frozenset(known["sample"][chosen]), frozenset(known["sample"][~chosen]))


def decisions(
    frame: pandas.DataFrame, share: float = 0.25, seed: int = 0, given: Splits | None = None
) -> pandas.DataFrame:
    """One row per selection and component that has several candidates (COLUMNS).

    Components: policy (every policy of bounded cost, its usual variant; the reference is the one-shot
    selection) and each policy with several variants (the reference is the variant with the usual options).
    ``given`` replaces the seeded splits. verdict: confirmed, not confirmed, reference (it is the best on the
    development split itself), void (the splits overlap) or empty with the reason in ``note``.
    """
    rows = []
    if given:
        asked = given.development | (given.test or frozenset())
        unknown = sorted(asked - set(frame["sample"].dropna()))
        if unknown:
            raise UserError(f"the splits name samples that are not in the store: {', '.join(unknown[:5])}.")
    for group in policies.groups(frame):
        splits = given or splits_of(group, share, seed)
        if splits.test is None:
            others = set(group["sample"].dropna()) - splits.development
            splits = Splits(splits.development, frozenset(others))
        key = {name: group[name].iloc[0] for name in GROUP}
        for component, candidates, reference in _components(group):
            found = decide(group, candidates, reference, splits)
            rows.append({**key, "component": component, "candidates": " | ".join(candidates), **found})
    return policies.tidy(rows, COLUMNS)


def _components(group: pandas.DataFrame) -> list[tuple[str, list[str], str | None]]:
    """(component, candidates, reference)."""
    names = [name for name in dict.fromkeys(group["name"]) if name not in _BOUNDS]
    usual = [policies.chosen(group, name) for name in names]
    found = [("policy", usual, policies.chosen(group, ONE_SHOT))] if usual else []
    for name in names:
        variants = list(dict.fromkeys(group["policy"][group["name"] == name]))
        if len(variants) > 1:
            found.append((name, variants, policies.chosen(group, name)))
    return found


def decide(
    group: pandas.DataFrame, candidates: Collection[str], reference: str | None, splits: Splits
) -> dict[str, Any]:
    """Apply the rule to the rows of one selection; the columns of ``decisions`` from ``chosen`` on."""
    known = group[group["sample"].notna()]
    development = known[known["sample"].isin(splits.development)]
    test = known[known["sample"].isin(splits.test)]
    row = {
        "chosen": "",
        "reference": reference or "",
        "verdict": "",
        "development": development["sample"].nunique(),
        "test": test["sample"].nunique(),
        "overlap": len(splits.development & splits.test),
        "shared_pictures": len(set(development["cluster"]) & set(test["cluster"])),
        **policies.hole(""),
    }
    if row["overlap"] or row["shared_pictures"]:
        shared = f"{row['overlap']} samples and {row['shared_pictures']} pictures"
        return {**row, "verdict": "void", "note": f"the splits share {shared}"}
    if reference is None:
        return {**row, "note": f"no cell with refresh={ONE_SHOT} to compare with"}
    rows = {label: scored(of(development, label)) for label in dict.fromkeys([*candidates, reference])}
    means = {label: known["value"] for label, known in rows.items()}
    if any(values.empty for values in means.values()):
        bare = next(label for label, values in means.items() if values.empty)
        return {**row, "note": f"{bare} has no scored sample in the development split"}
    if len({frozenset(known["sample"]) for known in rows.values()}) > 1:
        return {**row, "note": "the policies are not scored on the same development samples"}
    best = max(means, key=lambda label: (means[label].mean(), label == reference))
    row["chosen"] = best
    if best == reference:
        return {**row, "verdict": "reference"}
    gap = policies.compare(test, best, reference)
    if not math.isfinite(gap["low"]):
        return {**row, **gap, "note": gap["note"] or "the test split is empty"}
    return {**row, **gap, "verdict": "confirmed" if gap["low"] > 0 else "not confirmed"}
