"""A method is capacity x score x window at a budget, plus a refresh; built here, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvbench.checks import check_budget, check_whole, suggest
from kvbench.errors import UserError
from kvbench.methods.base import Capacity, Score, WindowScore
from kvbench.methods.refresh.base import Reselect
from kvbench.methods.registry import lookup, make, names

FULL = "fullkv"
KEYS = ("name", "window", "capacity", "score", "refresh")
PUBLISHED = {"snapkv": "uniform", "pyramidkv": "pyramid", "adakv": "adakv", "sparsemm": "sparsemm"}
_ALIAS = {group: name for name, group in PUBLISHED.items()}


@dataclass(frozen=True)
class Method:
    """How one branch of a sample is compressed; `fullkv` has neither capacity nor score."""

    name: str
    capacity: Capacity | None = None
    score: Score | None = None
    window: int = 0
    budget: int | None = None  # entries per KV head, window included
    refresh: Reselect | None = None  # re-selection while decoding; None: one-shot

    @property
    def full(self) -> bool:
        """True when nothing is ever dropped."""
        return self.capacity is None

    @property
    def extras(self) -> frozenset[str]:
        """What prefill must capture besides keys, values and window queries."""
        if self.full:
            return frozenset()
        refresh = frozenset() if self.refresh is None else self.refresh.extras
        return self.capacity.extras | self.score.extras | refresh

    @property
    def base(self) -> tuple[str, str, int]:
        """(reduce, pool, kernel) of the base score, which AdaKV shares with the method's score."""
        if isinstance(self.score, WindowScore):
            return self.score.reduce, self.score.pool, self.score.kernel
        return "mean", "avg", 5


def parse(name: str) -> tuple[str, str] | None:
    """`CAPACITY` or `CAPACITY+SCORE` -> (capacity, score) group names; None for `fullkv`."""
    if not isinstance(name, str) or not name:
        raise UserError(f"a method is a name such as `snapkv+bacon`, not {name!r}.")
    if name == FULL:
        return None
    capacity, plus, score = name.partition("+")
    capacity = PUBLISHED.get(capacity, capacity)
    if capacity not in names("capacity"):
        raise UserError(f"unknown method `{name}`: {suggest(name, method_names() + names('capacity'))}")
    if plus and score not in names("score"):
        raise UserError(f"unknown score `{score}` in method `{name}`: {suggest(score, names('score'))}")
    return capacity, score or "window"


def canonical(capacity: str, score: str) -> str:
    """The published name of a combination: uniform x window is `snapkv`."""
    published = _ALIAS.get(capacity, capacity)
    return published if score == "window" else f"{published}+{score}"


def method_names() -> list[str]:
    """Every combination by its published name, `fullkv` first."""
    return [FULL] + [canonical(c, s) for c in names("capacity") for s in names("score")]


def build(spec: dict[str, Any], budget: int | None) -> Method:
    """A validated Method from the `method` part of a cell's config.

    spec: {name, window?, capacity?: {name?, options...}, score?: {name?, options...}, refresh?: {name?,
    options...}}. The window defaults to the score's own (4 for ecokv, else 32), the refresh to none. Raises
    UserError with the nearest names.
    """
    spec = dict(spec)
    for key in spec:
        if key not in KEYS:
            raise UserError(f"a method has no key `{key}`: {suggest(key, KEYS)}")
    parts = {kind: _part(spec.get(kind), kind) for kind in ("capacity", "score")}
    name = spec.get("name")
    parsed = parse(name) if name is not None else (None, None)
    if parsed is None:
        return Method(FULL)
    chosen = {}
    for kind, from_name in zip(("capacity", "score"), parsed, strict=True):
        given = parts[kind].pop("name", None)
        if given is not None:
            lookup(kind, given)
            if from_name is not None and given != from_name:
                raise UserError(
                    f"method `{name}` says {kind} `{from_name}`, but {kind}.name is `{given}`: drop one."
                )
        chosen[kind] = given or from_name or ("uniform" if kind == "capacity" else "window")
    capacity = make("capacity", chosen["capacity"], parts["capacity"])
    score = make("score", chosen["score"], parts["score"])
    window = spec.get("window")
    if window is None:
        window = score.default_window
    check_whole("method.window", window, 1)
    check_budget(budget, window)
    refresh = _refresh(spec.get("refresh"), chosen["capacity"], window, budget)
    return Method(canonical(chosen["capacity"], chosen["score"]), capacity, score, window, budget, refresh)


def _refresh(value: Any, capacity: str, window: int, budget: int) -> Reselect | None:
    """The validated refresh policy of a method; None for `none`."""
    options = _part(value, "refresh")
    name = options.pop("name", None) or "none"
    policy = make("refresh", name, options)
    if not isinstance(policy, Reselect):
        return None
    if capacity != "uniform":
        raise UserError(
            f"refresh `{name}` rewrites equally many entries in every head, which capacity `{capacity}` does "
            f"not select: use method=snapkv or snapkv+SCORE."
        )
    policy.layout(window, budget)
    return policy


def _part(value: Any, kind: str) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, dict):
        raise UserError(f"{kind} must be a name or a mapping of options, not {value!r}.")
    return dict(value)
