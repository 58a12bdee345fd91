"""Which attributes to search and where to cut: judged by what the busiest matcher has to search."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
from naive_partitioning import place_one

from fieldfare.filters import Conjunction, NormalForm
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.model import Path
from fieldfare.partitioning import AttributeSpace, Extents, constrained_paths, extents_of
from fieldfare.planning.plans import (
    PlanSettings,
    better_plan,
    owners_in_turn,
    plan,
    work_of,
)
from fieldfare_lab.workloads.synthetic import WORKLOADS, closed_range

MATCHERS = 8
SETTINGS = PlanSettings()


def workload(name: str, size: int = 1500) -> tuple[list[NormalForm], ColumnBatch, Extents]:
    forms = list(WORKLOADS[name].normal_forms(size, 1))
    paths = sorted(constrained_paths(forms))
    return forms, WORKLOADS[name].events(1000, 2), extents_of(enumerate(forms), paths)


def test_every_attribute_of_the_papers_workload_is_worth_searching() -> None:
    """Li et al. 2011, Figure 11(a): the saturation rate grows with each of four attributes."""
    _, events, extents = workload("bluedove")
    found = plan(extents, events, MATCHERS)
    assert found is not None
    assert len(found.partitioning.axes) == 4
    assert found.work < 0.5 * (len(extents) + SETTINGS.event_cost) / MATCHERS  # full replication


def test_an_attribute_that_few_filters_name_is_not_searched() -> None:
    """Travellers' alerts name the destination nearly always, and the wind hardly ever."""
    _, events, extents = workload("mixed")
    found = plan(extents, events, MATCHERS)
    assert found is not None
    searched = set(found.partitioning.paths)
    assert ("data", "dest") in searched
    assert not searched & {("data", "wind_speed"), ("data", "distance")}


def test_the_work_of_a_plan_is_what_its_placement_and_routes_give() -> None:
    forms, events, extents = workload("mixed", 600)
    found = plan(extents, events, MATCHERS)
    assert found is not None
    assert found.work == work_of(found.partitioning, extents, events, SETTINGS.event_cost)
    stored = sum(len(place_one(found.partitioning, i, form)) for i, form in enumerate(forms))
    assert found.copies == stored / len(forms)


def test_wide_subscriptions_are_hashed_where_that_saves_many_copies() -> None:
    """Half of the filters say nothing about either attribute: stored everywhere they fill every set."""
    rng = np.random.default_rng(3)
    x, y = ("x",), ("y",)
    forms = [NormalForm((Conjunction(()),))] * 300 + [
        NormalForm((Conjunction(tuple((path, closed_range(int(low), int(low) + 20)) for path in (x, y))),))
        for low in rng.integers(0, 980, 300)
    ]
    events = columns_of({x: rng.integers(0, 1000, 1000), y: rng.integers(0, 1000, 1000)})
    found = plan(extents_of(enumerate(forms), [x, y]), events, MATCHERS, PlanSettings(event_cost=1.0))
    assert found is not None
    space = found.partitioning
    assert space.hash_owners
    without = AttributeSpace(space.axes, space.owners)
    extents = extents_of(enumerate(forms), [x, y])
    assert found.work < 1.25 * work_of(without, extents, events, 1.0)
    assert found.copies < 0.5 * len(without.place(extents).subscriptions) / len(forms)


def test_few_matchers_with_many_segments_search_nearly_as_little_as_many_matchers() -> None:
    """Two workers need not search half of everything: each has eight segments of every attribute."""
    _, events, extents = workload("bluedove")
    few = plan(extents, events, 2, PlanSettings(segments_per_matcher=8))
    one_each = plan(extents, events, 2, PlanSettings())
    many = plan(extents, events, 16, PlanSettings())
    assert few is not None and one_each is not None and many is not None
    assert 2 * few.work < 1.1 * 16 * many.work
    assert few.work < 0.6 * one_each.work


def test_without_events_or_without_a_narrow_attribute_there_is_no_plan() -> None:
    _, events, extents = workload("mixed", 50)
    assert plan(extents, ColumnBatch(0, {}), MATCHERS) is None
    anything = extents_of([(1, NormalForm((Conjunction(()),)))], [("data", "dest")])
    assert plan(anything, events, MATCHERS) is None


def test_neighbours_differ_between_dimensions() -> None:
    """A matcher's replicas are kept by its neighbours: they should not all be one and the same."""
    after_0 = [(owners_in_turn(20, i) * 2)[1] for i in range(4)]
    assert len(set(after_0)) == 4
    assert all(sorted(owners_in_turn(12, i)) == list(range(12)) for i in range(4))


def columns_of(values: dict[Path, np.ndarray]) -> ColumnBatch:
    """Whole numbers as columns."""
    from fieldfare_lab.workloads.synthetic import _integers

    size = len(next(iter(values.values())))
    return ColumnBatch(size, {path: _integers(column) for path, column in values.items()})


def drifting(centre: int) -> tuple[Extents, ColumnBatch]:
    """Subscriptions and events that crowd around a place."""
    rng = np.random.default_rng(centre)
    path = ("data", "longitude")
    lows = np.clip(rng.normal(centre, 30, 500), 0, 990)
    forms = [
        NormalForm((Conjunction(((path, closed_range(Decimal(int(low)), Decimal(int(low) + 8))),)),))
        for low in lows
    ]
    events = columns_of({path: np.clip(rng.normal(centre, 30, 800), 0, 999).astype(np.int64)})
    return extents_of(enumerate(forms), [path]), events


def test_segments_are_cut_again_when_the_load_has_moved() -> None:
    """In the morning the traffic is in the suburbs; at noon it is downtown."""
    morning, noon = drifting(200), drifting(800)
    first = plan(*morning, MATCHERS)
    assert first is not None
    assert better_plan(first.partitioning, *morning, MATCHERS, SETTINGS) is None
    moved = better_plan(first.partitioning, *noon, MATCHERS, SETTINGS)
    assert moved is not None
    before = work_of(first.partitioning, *noon, SETTINGS.event_cost)
    assert work_of(moved.partitioning, *noon, SETTINGS.event_cost) < 0.5 * before
    assert better_plan(moved.partitioning, *noon, MATCHERS, SETTINGS) is None
