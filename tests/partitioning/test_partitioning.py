"""Whatever the strategy and whatever the forwarding: exactly the naive matches, none lost, none twice."""

from __future__ import annotations

from typing import Any

import matching_support as support
import partitioning_support as space
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_partitioning import place_one, route_of, route_one, segment_of
from tests.doses import drawn

from fieldfare.partitioning import AttributeSpace, Axis, Partitioning, extents_of
from fieldfare_lab.axes import numeric_axis, single_attribute
from fieldfare_lab.replicas import ReplicatedSpace

forms = st.lists(support.normal_forms, max_size=10)
events = st.lists(support.events, min_size=1, max_size=6)
property_test = settings(max_examples=drawn(120))


@property_test
@given(space.partitionings, forms, events, st.data())
def test_an_event_finds_exactly_its_matches_whichever_candidate_it_is_forwarded_to(
    partitioning: Partitioning, forms: list[Any], events: list[Any], data: st.DataObject
) -> None:
    """A dispatcher may be wrong about every load, and no subscriber notices."""
    slices = space.stored(partitioning, forms)
    routes = partitioning.route(support.columns_of(events))
    for number, event in enumerate(events):
        route = route_of(routes, number)
        chosen = [data.draw(st.sampled_from(route.candidates))] if route.candidates else []
        assert space.search(slices, [*chosen, *route.always], forms, event) == space.naive(forms, event)


@property_test
@given(space.partitionings, forms, events)
def test_batches_are_placed_and_routed_as_one_at_a_time(
    partitioning: Partitioning, forms: list[Any], events: list[Any]
) -> None:
    slices = space.stored(partitioning, forms)
    for i, form in enumerate(forms):
        in_batch = {number for number, found in enumerate(slices) if i in found}
        assert place_one(partitioning, 1000 + 17 * i, form) == in_batch
    routes = partitioning.route(support.columns_of(events))
    for number, event in enumerate(events):
        assert route_of(routes, number) == route_one(partitioning, space.value_of(event))


@property_test
@given(space.attribute_spaces(), forms, events)
def test_with_any_one_matcher_down_every_event_still_has_somewhere_to_go(
    partitioning: AttributeSpace, forms: list[Any], events: list[Any]
) -> None:
    """Section III.A.3: a dispatcher that finds a candidate dead forwards to another."""
    slices = space.stored(partitioning, forms)
    routes = partitioning.route(support.columns_of(events))
    for number, event in enumerate(events):
        route = route_of(routes, number)
        owners = {partitioning.slices[candidate].matcher for candidate in route.candidates}
        if not isinstance(partitioning, ReplicatedSpace):
            assert not route.spares
            continue
        if len(partitioning.axes) == 1 or len(owners) > 1 or len(partitioning.matchers) == 1:
            continue
        assert len(route.spares) == len(partitioning.axes) - 1
        for spare in route.spares:
            assert partitioning.slices[spare].matcher not in owners
            assert space.search(slices, [spare, *route.always], forms, event) == space.naive(forms, event)


@property_test
@given(space.axes(("a",)), events)
def test_an_axis_locates_a_batch_as_it_locates_one_value(axis: Axis, events: list[Any]) -> None:
    """Floats that print as a boundary, integers beyond 2**53, surrogates, NUL: exact all the same."""
    found = axis.locate(support.columns_of(events))
    assert found.tolist() == [segment_of(axis, space.value_of(event)(("a",))) for event in events]


def test_numbers_that_are_nearly_a_boundary_fall_on_the_right_side_of_it() -> None:
    """0.1 lies below the boundary 0.10000000000000000001, although both have the same float64."""
    numbers = [*support._INTERESTING_NUMBERS, float("inf"), float("-inf")]
    batch = support.columns_of([{("a",): number} for number in numbers])
    for boundary in support._INTERESTING_NUMBERS:
        axis = numeric_axis(("a",), [boundary])
        assert axis.locate(batch).tolist() == [segment_of(axis, number) for number in numbers]


def test_a_subscription_that_matches_nothing_is_stored_nowhere() -> None:
    never = support.NormalForm(())
    partitioning = single_attribute(numeric_axis(("a",), [1, 2]), [0, 1, 2])
    assert space.stored(partitioning, [never]) == [[], [], []]


def test_a_subscription_that_is_wide_on_every_attribute_is_stored_once() -> None:
    """A filter such as `type = 'alarm'` says nothing about place or speed: it must not fill 2 N slices."""
    axes = (numeric_axis(("a",), range(1, 20)), numeric_axis(("b",), range(1, 20)))
    matchers = tuple(range(20))
    partitioning = AttributeSpace(axes, (matchers, matchers), hash_owners=matchers)
    wide = support.NormalForm((support.Conjunction(()),))
    placement = partitioning.place(extents_of([(7, wide)], partitioning.paths))  # type: ignore[list-item]
    assert placement.sizes.sum() == 1
    assert place_one(partitioning, 7, wide) == {int(placement.sizes.argmax())}  # type: ignore[arg-type]
