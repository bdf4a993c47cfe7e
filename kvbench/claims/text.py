"""The claims that need no picture, on a bare language model over real text: BACON's scores, ECOKV's keys."""

from __future__ import annotations

from pathlib import Path

from kvbench.claims import printed, prompts
from kvbench.claims.cells import ABOVE, Spec, gap, plain
from kvbench.claims.row import Claim, Test
from kvbench.observations import FOLDER
from kvbench.observations.measure import VERSION
from kvbench.observations.stored import Values, in_order, read

MODEL, BENCHMARK = "smollm2", "longbench_mini"
CAPACITIES = ("snapkv", "pyramidkv", "adakv")  # sparsemm's heads are those that look at pictures
BUDGET, WINDOW = 64, 32
PRINTED = "mistral_7b_instruct_v02"  # the text model of BACON table 4
WHERE = " (smollm2, real text)"
ANSWERS = "run experiment=claims_text"
POINTS = "difference in F1, budget 64:"


def load(store: Path) -> list[Values]:
    """The observed prompts of a store; none where an older definition of a quantity observed them."""
    document = read(store / FOLDER / MODEL / f"{BENCHMARK}.json")
    return in_order(document) if (document["of"] or {}).get("version") == VERSION else []


def keys() -> list[Test]:
    """ECOKV's analyses of keys."""
    return prompts.keys("observe experiment=claims_text", WHERE)


def answers() -> list[Test]:
    """Scores above their bases at the tightest budget, the same window everywhere."""

    def group(score: str) -> list[Spec]:
        return plain(*(f"{capacity}{score}" for capacity in CAPACITIES), window=WINDOW)

    found = []
    for text, first, second in (
        ("bacon is above the capacity alone", "+bacon", ""),
        ("bacon is above mixkv", "+bacon", "+mixkv"),
    ):
        methods = f"snapkv{second}", f"snapkv{first}"
        figure = printed.steps("bacon", "4", "longbench", *methods, model=PRINTED, budget=512)
        text = f"{text}, mean of three capacities{WHERE}"
        claim = Claim("BACON", text, figure, POINTS, ABOVE, ANSWERS)
        found.append((claim, gap(group(first), group(second), (BENCHMARK,), BUDGET)))
    return found
