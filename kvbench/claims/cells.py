"""BACON's and ECOKV's claims about answers, from the scored cells of a store, without the model.

Short answers pool the three question benchmarks in points of their metrics; a page with its questions is
resampled as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.analysis import drift, policies
from kvbench.analysis.bootstrap import Difference, difference
from kvbench.analysis.results import Entry, entries
from kvbench.claims import printed
from kvbench.claims.row import Claim, Estimate, Hole, Region, Test

if TYPE_CHECKING:
    import pandas

MODEL = "embedded"
MODELS = {"longbench_mini": "smollm2"}  # of benchmarks without pages
QUESTIONS = ("docqa_mini", "textqa_mini", "chartqa_mini")
CAPACITIES = ("snapkv", "pyramidkv", "adakv", "sparsemm")
UNIFORM = "snapkv"  # holds its budget exactly
TIGHTEST, WINDOW = 32, 16  # budget and the embedded model's window
ABOVE, BELOW = Region(low=0), Region(high=0)


class Cells:
    """Scored cells and traces of a store, read when asked for."""

    def __init__(self, store: Path):
        self.store = store

    @cached_property
    def entries(self) -> list[Entry]:
        """Every cell; a benchmark has those of one model, see MODELS."""
        return [e for e in entries(self.store) if e.cell.model == MODELS.get(e.cell.benchmark, MODEL)]

    @cached_property
    def drift(self) -> drift.Drift:
        """Samples of every policy and what their traces hold."""
        return drift.load(self.store)

    def find(self, benchmark: str, method: str, budget: int | None, **options: Any) -> Entry:
        """The scored cell with these options and otherwise the usual ones. Raises Hole without one."""
        from kvbench import methods

        wanted = {"window": WINDOW, **options} if budget else options
        fitting = []
        for entry in self.entries:
            cell, mine = entry.cell, entry.cell.options
            if (cell.benchmark, cell.method, cell.budget) != (benchmark, method, budget):
                continue
            if entry.scores is None or any(mine.get(key) != value for key, value in wanted.items()):
                continue
            parts = zip(("capacity", "score"), methods.parse(cell.first) or (), strict=False)
            usual = {f"{k}.{o.name}": o.default for k, name in parts for o in methods.options(k, name)}
            unlike = sum(mine.get(k) != v for k, v in usual.items() if k in mine and k not in wanted)
            if unlike == 0:
                fitting.append(entry)
        if len(fitting) != 1:
            at = f" at budget {budget}" if budget else ""
            raise Hole(f"{'no' if not fitting else 'more than one'} scored {method}{at} on {benchmark}")
        return fitting[0]

    def policy(self, benchmark: str, policy: str) -> tuple[pandas.DataFrame, str]:
        """The selection of a benchmark and its policy's label. Raises Hole."""
        rows = self.drift.samples
        rows = rows[(rows["model"] == MODEL) & (rows["benchmark"] == benchmark)]
        for group in policies.groups(rows):
            label = policies.chosen(group, policy)
            if label is not None and len(policies.scored(policies.of(group, label))):
                return group, label
        raise Hole(f"no scored cell with refresh={policy} on {benchmark}")


def estimate(gap: Difference, note: str = "") -> Estimate:
    return Estimate(gap.delta, gap.low, gap.high, gap.n, gap.clusters, note=note)


def points(entry: Entry) -> dict[int, float]:
    """A cell's own metric by sample, in the units that tables show."""
    from kvbench.analysis.scoring import benchmark_config

    config = benchmark_config(entry.cell)
    values = entry.scores.per_sample.get(config["metric"], {})
    return {index: config.get("scale", 1) * value for index, value in values.items()}


Spec = tuple[str, dict[str, Any]]  # a method and its options


def gap(
    first: Sequence[Spec],
    second: Sequence[Spec],
    benchmarks: Sequence[str] = QUESTIONS,
    budget: int | None = TIGHTEST,
) -> Callable[[Cells], Estimate]:
    """Paired difference of two groups of cells, the mean over a group's cells, pooled over benchmarks."""

    def figure(cells: Cells) -> Estimate:
        pooled: tuple[dict[int, float], dict[int, float]] = ({}, {})
        clusters: dict[int, str] = {}
        for number, benchmark in enumerate(benchmarks):
            shift = 1_000_000 * number  # keeps the benchmarks' samples apart
            for specs, values in zip((first, second), pooled, strict=True):
                found = []
                for method, options in specs:
                    of = None if method == "fullkv" else budget
                    found.append(cells.find(benchmark, method, of, **options))
                by_cell = [points(entry) for entry in found]
                for index in by_cell[0]:
                    if all(index in mine for mine in by_cell):
                        values[shift + index] = sum(mine[index] for mine in by_cell) / len(by_cell)
                    clusters[shift + index] = f"{benchmark} {found[0].scores.clusters.get(index, index)}"
        return estimate(difference(*pooled, clusters=clusters))

    return figure


def plain(*methods: str, **options: Any) -> list[Spec]:
    return [(method, {"window": 4, **options} if "ecokv" in method else options) for method in methods]


def equal(*methods: str) -> list[Spec]:
    """The methods at equal memory; a uniform capacity holds its budget as it is."""
    scaled = {"capacity.equal_entries": True}
    return [spec for m in methods for spec in plain(m, **({} if m.startswith(UNIFORM) else scaled))]


GRID = "run experiment=claims"
EQUAL = "run experiment=claims_equal"
TERMS = "run experiment=claims_terms"
DIVERSITY = "run experiment=claims_diversity"
WINDOWS = "run experiment=claims_windows"
POINTS = "difference in points, budget 32:"
_TERM = {"evidence": "E", "coherence": "L", "persistence": "T"}


def bacon() -> list[Test]:
    """Scores of BACON and of its parts."""
    tests: list[Test] = []
    for capacity in CAPACITIES:
        both = (capacity, f"{capacity}+bacon")
        claim = Claim(
            "BACON",
            f"bacon is above {capacity} at the tightest budget",
            printed.steps("bacon", "1", "docvqa", *both),
            POINTS,
            ABOVE,
            GRID,
        )
        tests.append((claim, gap(plain(both[1]), plain(both[0]))))
    whole = "evidence=true coherence=true persistence=true"
    for term, letter in _TERM.items():
        without = f"snapkv+bacon {whole.replace(f'{term}=true', f'{term}=false')}"
        steps = printed.steps(
            "bacon", "5", "docvqa", without, f"snapkv+bacon {whole}", model="llava_next_mistral_7b"
        )
        claim = Claim("BACON", f"the term {letter} ({term}) contributes", steps, POINTS, ABOVE, TERMS)
        off = {f"score.{term}": False}
        tests.append((claim, gap(plain("snapkv+bacon"), plain("snapkv+bacon", **off))))
    return tests


def ecokv() -> list[Test]:
    """Scores of ECOKV, its parts and its window."""
    every = {score: [f"{c}{score}" for c in CAPACITIES] for score in ("", "+mixkv", "+ecokv")}
    alone = {"Euclidean distance": 1.0, "cosine similarity": 0.0}
    tests: list[Test] = []
    for first, second in (("+ecokv", "+mixkv"), ("+mixkv", "")):
        for memory, run, specs in (("", GRID, plain), (", equal entries", EQUAL, equal)):
            claim = Claim(
                "ECOKV",
                f"{first[1:]} is above {second[1:] or 'the capacity alone'}, mean of four capacities{memory}",
                printed.steps("ecokv", "1", "chartqa", f"snapkv{second}", f"snapkv{first}"),
                POINTS,
                ABOVE,
                run,
            )
            tests.append((claim, gap(specs(*every[first]), specs(*every[second]))))
    for name, share in alone.items():
        claim = Claim(
            "ECOKV",
            f"both metrics together beat {name} alone (same window)",
            "the best mixture beats both (figure 3)",
            POINTS,
            ABOVE,
            DIVERSITY,
        )
        options = {"window": WINDOW, "score.alpha": share, "score.beta": share}
        usual = {"window": WINDOW, "score.alpha": 0.8, "score.beta": 0.6}
        tests.append((claim, gap(plain("snapkv+ecokv", **usual), plain("snapkv+ecokv", **options))))
    for method in ("snapkv+ecokv", "snapkv"):
        steps = ("snapkv+ecokv window=32", "snapkv+ecokv window=4")
        figure = (
            printed.steps("ecokv", "3", "chartqa", *steps)
            if method == "snapkv+ecokv"
            else printed.steps("ecokv", "9", "ocrbench", "snapkv window=32", "snapkv window=4")
        )
        text = f"a window of an eighth of the budget beats one of half for {method}"
        claim = Claim("ECOKV", text, figure, POINTS, ABOVE, WINDOWS)
        tests.append((claim, gap(plain(method, window=4), plain(method, window=WINDOW))))
    return tests
