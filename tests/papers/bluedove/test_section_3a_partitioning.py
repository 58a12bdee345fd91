"""Li et al. 2011 (BlueDove), section III.A: multi-dimensional partitioning, its examples by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest
from naive_partitioning import place_one, route_one

from fieldfare.filters import NormalForm, compile_filter
from fieldfare.partitioning import AttributeSpace, Axis, Slice
from fieldfare_lab.axes import numeric_axis, single_attribute
from fieldfare_lab.replicas import ReplicatedSpace

LONGITUDE, LATITUDE, SPEED = ("longitude",), ("latitude",), ("speed",)
A, B, C, D, E, F = range(6)


def form(text: str) -> NormalForm:
    return compile_filter(text).normal_form


def traffic() -> ReplicatedSpace:
    """Figure 2: three dimensions, each split into six segments, owned by matchers A to F.

    The text fixes [60, 90) on latitude for F, the segment of the sample on longitude for C, and the
    first two on speed for A and B; the figure's other owners are not in the text.
    """
    return ReplicatedSpace(
        axes=(
            numeric_axis(LONGITUDE, [-120, -60, 0, 60, 120]),
            numeric_axis(LATITUDE, [-60, -30, 0, 30, 60]),
            numeric_axis(SPEED, [20, 40, 60, 80, 100]),
        ),
        owners=((A, B, C, D, E, F), (B, C, D, E, A, F), (A, B, C, D, E, F)),
    )


SAMPLE = form(
    "longitude >= -42 AND longitude < -41 AND latitude >= 70 AND latitude < 74 AND speed >= 0 AND speed < 25"
)


def held(space: AttributeSpace, number: int, subscription: NormalForm) -> list[tuple[int, int]]:
    """(dimension, matcher) of every slice that stores a subscription, but for replicas."""
    slices = [space.slices[i] for i in sorted(place_one(space, number, subscription))]
    return [(part.dimension, part.matcher) for part in slices if part.segment is not None]  # type: ignore[misc]


def test_figure_2_the_sample_subscription_is_assigned_to_four_matchers_along_three_dimensions() -> None:
    """Figure 2: F by latitude, C by longitude, A and B by speed, "so both store a copy"."""
    assert held(traffic(), 1, SAMPLE) == [(0, C), (1, F), (2, A), (2, B)]


def test_a_subscription_does_not_overlap_the_segment_that_begins_where_it_ends() -> None:
    """Section II.A: S^i = [l, u), and segments are half-open as well."""
    ends_at_boundary = form("speed >= 0 AND speed < 20")
    includes_it = form("speed >= 0 AND speed <= 20")
    axis = single_attribute(traffic().axes[2], range(6))
    assert place_one(axis, 1, ends_at_boundary) == {0}
    assert place_one(axis, 1, includes_it) == {0, 1}


def test_every_subscription_is_assigned_at_least_once_in_each_dimension() -> None:
    """Section III.A: "in total it is assigned k times to at least k matchers", or more often."""
    for text in ("speed > 30", "latitude < 0 OR speed = 5", "longitude BETWEEN 0 AND 1", "city = 'Ulm'"):
        dimensions = {dimension for dimension, _ in held(traffic(), 1, form(text))}
        assert dimensions == {0, 1, 2}


def test_on_each_candidate_matcher_all_matching_subscriptions_can_be_found() -> None:
    """Section III.A.1: v^i in V_j^i and v^i in S^i, so S^i overlaps V_j^i, for each dimension i."""
    event = {LONGITUDE: Decimal("-41.5"), LATITUDE: 72, SPEED: 12}
    candidates = route_one(traffic(), event.__getitem__).candidates
    assert [traffic().slices[i] for i in candidates] == [Slice(C, 0, 2), Slice(F, 1, 5), Slice(A, 2, 0)]
    assert set(candidates) < place_one(traffic(), 1, SAMPLE)


def test_a_subscription_whose_copies_all_fall_on_one_matcher_is_replicated_to_its_neighbours() -> None:
    """Section III.A: on the clockwise neighbours on the other dimensions, "(k - 1) additional matchers"."""
    space = traffic()
    all_on_a = form("longitude < -170 AND latitude >= 35 AND latitude < 40 AND speed < 5")
    assert held(space, 1, all_on_a) == [(0, A), (1, A), (2, A)]
    replicas = [space.slices[i] for i in place_one(space, 1, all_on_a) if space.slices[i].segment is None]
    assert sorted(replicas) == [Slice(B, 2, None), Slice(F, 1, None)]


def test_an_event_whose_candidates_are_one_matcher_can_go_to_the_neighbours_instead() -> None:
    """Section III.A.3, completed: with A down the event finds everything it can match on F or on B."""
    space = traffic()
    event = {LONGITUDE: -175, LATITUDE: 37, SPEED: 3}
    route = route_one(space, event.__getitem__)
    assert {space.slices[i].matcher for i in route.candidates} == {A}
    assert {space.slices[i].matcher for i in route.spares} == {B, F}
    also_elsewhere = form("latitude >= 35 AND latitude < 65 AND longitude < -170 AND speed < 5")
    assert set(route.spares) < place_one(space, 2, also_elsewhere)


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("symbol = 'IBM'", {1}),
        ("symbol IN ('IBM', 'YHOO', 'ABB')", {0, 1, 2}),
        ("symbol LIKE 'IB%'", {1}),
        ("symbol IS NULL", {0}),
        ("symbol > 'N'", {2}),
        ("price < 3", {0, 1, 2}),
    ],
)
def test_beyond_the_paper_strings_sets_prefixes_and_missing_attributes_have_their_segments(
    text: str, segments: set[int]
) -> None:
    """The axis has all values in one order: atoms and numbers before strings, strings by code point."""
    axis = single_attribute(Axis(("symbol",), ((6, "C", 0), (6, "N", 0))), range(3))
    assert place_one(axis, 1, form(text)) == segments
