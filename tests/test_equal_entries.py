"""Capacities scaled to their budget: the mean of what heads hold is the budget, whatever the method."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_select_properties import case

from kvbench import claims, methods
from kvbench.claims import cells
from kvbench.errors import UserError
from kvbench.methods.base import scaled_counts
from kvbench.methods.select import select
from kvbench.planning import plan

UNEVEN = [name for name in methods.names("capacity") if name != "uniform"]


@pytest.mark.parametrize("capacity", UNEVEN)
@pytest.mark.parametrize("score", methods.names("score"))
def test_the_realised_mean_is_the_budget(capacity, score):
    inputs, extra = case(3, layers=6, heads=3, group=2, length=90, window=8)
    for window, budget in ((8, 33), (4, 33), (8, 12)):
        kept = select(
            *inputs,
            method=f"{capacity}+{score}",
            budget=budget,
            window=window,
            capacity={"equal_entries": True},
            **extra,
        )
        sizes = [len(head) for layer in kept for head in layer]
        assert sum(sizes) == 6 * 3 * budget
        assert min(sizes) < max(sizes), "scaled, not made uniform"
        for layer in kept:
            for head in layer:
                assert head[-window:].tolist() == list(range(90 - window, 90))


def test_published_capacities_miss_the_budget():
    inputs, extra = case(3, layers=6, heads=3, group=2, length=90, window=8)
    kept = select(*inputs, method="pyramidkv", budget=33, **extra, window=8)
    assert sum(len(head) for layer in kept for head in layer) > 6 * 3 * 33


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_counts_are_multiplied_by_one_factor(data):
    most = data.draw(st.integers(1, 40))
    counts = data.draw(st.lists(st.integers(0, most), min_size=1, max_size=12))
    total = data.draw(st.integers(0, most * len(counts)))
    found = scaled_counts(torch.tensor([counts]), total, most)[0].tolist()
    assert sum(found) == total and min(found) >= 0 and max(found) <= most
    for a, x in zip(counts, found, strict=True):
        for b, y in zip(counts, found, strict=True):
            assert a <= b or x >= y, "the order of heads stands"
    # One factor, up to rounding: of the heads with room, each is within one entry of its share.
    room = [i for i, x in enumerate(found) if x < most and counts[i]]
    if room and any(counts) and not any(found[i] for i in range(len(counts)) if not counts[i]):
        factor = Fraction(sum(found[i] for i in room), sum(counts[i] for i in room))
        assert all(abs(found[i] - factor * counts[i]) < 1 for i in room)
    if sum(counts) == total:
        assert found == counts


def test_scaled_by_hand():
    counts = torch.tensor([[8, 4], [2, 1]])
    assert scaled_counts(counts, 15, 20).tolist() == [[8, 4], [2, 1]]
    assert scaled_counts(counts, 30, 20).tolist() == [[16, 8], [4, 2]]
    assert scaled_counts(counts, 30, 10).tolist() == [[10, 10], [7, 3]]  # 20 of 28 and 12 of 14 do not fit
    assert scaled_counts(counts, 8, 20).tolist() == [[4, 2], [1, 1]]  # 4.27 2.13 1.07 0.53
    assert scaled_counts(torch.tensor([[5, 0], [0, 0]]), 11, 5).tolist() == [[5, 2], [2, 2]]
    many = scaled_counts(torch.full((6, 8), 3), 48 * 4 + 11, 20)  # ties go to the lower layer and head
    assert many.flatten().tolist() == [5] * 11 + [4] * 37


def test_a_setting_of_its_own():
    overrides = [
        "model=embedded",
        "method=pyramidkv",
        "budget=64",
        "method.capacity.equal_entries=false,true",
    ]
    (job,) = plan.jobs(overrides, multirun=True)
    assert [cell.config["method"]["capacity"]["equal_entries"] for cell in job.cells] == [False, True]
    mixed = [*overrides[:1], "method=snapkv,adakv", *overrides[2:]]
    (job,) = plan.jobs(mixed, multirun=True)
    assert [cell.method for cell in job.cells] == ["snapkv", "adakv", "adakv"]
    for method in ("snapkv", "fullkv"):
        with pytest.raises(UserError, match="equal_entries"):
            plan.jobs([*overrides[:1], f"method={method}", "method.capacity.equal_entries=true"])


def test_claims_tell_the_two_readings_apart():
    asked = {
        (method, options.get("window", cells.WINDOW))
        for claim in claims.listed()
        if claim.command == "run experiment=claims_equal"
        for side in ("first", "second")
        for method, options in claim.measure["gap"][side].items()
        if options.get("capacity.equal_entries") or method.startswith("snapkv")
    }
    planned = {
        (cell.method, cell.config["method"]["window"])
        for job in plan.jobs(["experiment=claims_equal"])
        for cell in job.cells
        if cell.config["method"]["capacity"]["equal_entries"]
    }
    uniform = {(f"snapkv{score}", window) for score, window in (("", 16), ("+mixkv", 16), ("+ecokv", 4))}
    assert asked == planned | uniform  # snapkv holds its budget as it is
