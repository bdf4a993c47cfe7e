"""What each reading of a paper changes here: variants in a store against the default, paired, as Markdown.

for NAME in scale redundancy adakv pyramid total bacon pages; do kvbench run experiment=decisions_$NAME; done
python scripts/decisions.py runs/decisions
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path

from kvbench.analysis.bootstrap import Difference
from kvbench.analysis.results import Entry, compare_all, entries
from kvbench.analysis.scoring import benchmark_config, score_store
from kvbench.methods import registry

HEADER = "| method | reading | benchmark, budget | n (pages) | default | this | difference [95 %] |"


def changed(entry: Entry) -> dict[str, object]:
    """Options of a cell's method that are not their defaults, by name."""
    spec = entry.cell.config["method"]
    usual = {
        f"{kind}.{option.name}": option.default
        for kind in registry.KINDS
        if spec.get(kind)
        for option in registry.options(kind, spec[kind]["name"])
    }
    return {
        key.partition(".")[2]: value
        for key, value in entry.cell.options.items()
        if key in usual and value != usual[key]
    }


def lines(store: Path) -> list[str]:
    """The rows of the table. Raises UserError when the store has answers that cannot be scored."""
    groups: dict[tuple, list[Entry]] = defaultdict(list)
    for entry in entries(store):
        cell = entry.cell
        if entry.scores is not None and cell.budget is not None:
            groups[cell.model, cell.benchmark, cell.method, cell.budget].append(entry)
    found = []
    for (_, benchmark, method, budget), group in groups.items():
        config = benchmark_config(group[0].cell)
        metric, scale = config["metric"], config.get("scale", 1.0)
        default = next((entry for entry in group if not changed(entry)), None)
        others = [entry for entry in group if changed(entry)]
        if default is None:
            continue
        for entry, gap in zip(others, compare_all([(e, default) for e in others], metric), strict=True):
            if not isinstance(gap, Difference):
                continue
            reading = " ".join(f"`{key}={value}`" for key, value in changed(entry).items())
            interval = (
                f"[{gap.low * scale:+.2f}, {gap.high * scale:+.2f}]"
                if math.isfinite(gap.low)
                else "no interval"
            )
            values = [f"{e.scores.metrics[metric] * scale:.2f}" for e in (default, entry)]
            shown = f"{gap.delta * scale:+.2f} {interval}{'*' if gap.significant else ''}"
            cells = (method, reading, f"{benchmark}, {budget}", f"{gap.n} ({gap.clusters})", *values, shown)
            found.append(f"| {' | '.join(cells)} |")
    return found


def main() -> None:
    store = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/decisions")
    score_store(store)
    print(HEADER, "|" + " --- |" * (HEADER.count("|") - 1), *lines(store), sep="\n")


if __name__ == "__main__":
    main()
