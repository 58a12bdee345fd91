"""Random axes and strategies, and the truth that every partitioning must give."""

from __future__ import annotations

from typing import Any

import matching_support as support
from hypothesis import strategies as st

from fieldfare.filters.values import ABSENT
from fieldfare.partitioning import (
    AttributeSpace,
    Axis,
    HashPartitioning,
    Partitioning,
    Replicated,
    extents_of,
)
from fieldfare.partitioning.axis import END, place_before
from fieldfare_lab.axes import single_attribute
from fieldfare_lab.replicas import ReplicatedSpace

places = st.one_of(
    support.values.map(place_before),
    st.integers(1, END - 1).map(lambda region: (region,)),
)


@st.composite
def axes(draw: st.DrawFn, path: Any = None) -> Axis:
    """An axis of one of the tests' attributes, cut anywhere."""
    boundaries = sorted(draw(st.lists(places, max_size=5)))
    return Axis(draw(st.sampled_from(support.PATHS)) if path is None else path, tuple(boundaries))


@st.composite
def attribute_spaces(draw: st.DrawFn) -> AttributeSpace:
    """mPartition with any attributes, cuts, owners and hash slices."""
    paths = draw(st.lists(st.sampled_from(support.PATHS), min_size=1, max_size=3, unique=True))
    chosen = tuple(draw(axes(path)) for path in paths)
    matcher = st.integers(0, draw(st.integers(0, 4)))
    owners = tuple(tuple(draw(matcher) for _ in range(axis.segment_count)) for axis in chosen)
    hash_owners = tuple(draw(st.lists(matcher, max_size=3)))
    kind = draw(st.sampled_from([AttributeSpace, ReplicatedSpace]))
    return kind(chosen, owners, hash_owners, draw(st.sampled_from([0.0, 0.4, 0.75, 1.0])))


@st.composite
def single_attributes(draw: st.DrawFn) -> AttributeSpace:
    """The P2P baseline."""
    axis = draw(axes())
    return single_attribute(axis, [draw(st.integers(0, 4)) for _ in range(axis.segment_count)])


partitionings: st.SearchStrategy[Partitioning] = st.one_of(
    attribute_spaces(),
    attribute_spaces(),
    single_attributes(),
    st.builds(HashPartitioning, st.integers(1, 5), st.integers(0, 7)),
    st.builds(Replicated, st.integers(1, 5)),
)


def stored(partitioning: Partitioning, forms: list[Any]) -> list[list[int]]:
    """The numbers of the subscriptions in every slice. Numbers are far apart, as after many removals."""
    numbered = [(1000 + 17 * i, form) for i, form in enumerate(forms)]
    placement = partitioning.place(extents_of(numbered, partitioning.paths))
    return [placement.of(i).tolist() for i in range(len(partitioning.slices))]


def search(slices: list[list[int]], visited: Any, forms: list[Any], event: dict[Any, Any]) -> list[int]:
    """Return an event's matches in the slices that it visits, with repetitions."""
    return sorted(i for visit in visited for i in slices[visit] if support.matches_of(forms[i], event))


def naive(forms: list[Any], event: dict[Any, Any]) -> list[int]:
    """Return an event's expected matches."""
    return [i for i, form in enumerate(forms) if support.matches_of(form, event)]


def value_of(event: dict[Any, Any]) -> Any:
    """The attributes of an event, for `route_one`."""
    return lambda path: event.get(path, ABSENT)
