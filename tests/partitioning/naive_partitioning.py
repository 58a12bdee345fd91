"""Placing and routing one at a time, in plain Python: the twin of what partitionings do with batches.

It is written from what a strategy says of itself (its slices, axes and owners), not from how it computes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fieldfare.filters import NormalForm
from fieldfare.filters.values import ValueSet
from fieldfare.model import Path
from fieldfare.partitioning import (
    NO_SLICE,
    AttributeSpace,
    Axis,
    HashPartitioning,
    Partitioning,
    Replicated,
    Routes,
)
from fieldfare.partitioning.axis import intervals, place_before
from fieldfare.partitioning.extents import projection
from fieldfare.partitioning.strategy import hash_slice
from fieldfare_lab.replicas import SpareRoutes


class Route(NamedTuple):
    """The slices that one event visits."""

    candidates: tuple[int, ...]
    always: tuple[int, ...] = ()
    spares: tuple[int, ...] = ()


def route_of(routes: Routes, event: int) -> Route:
    """The route of one event of a batch."""
    found = routes.spares[event].tolist() if isinstance(routes, SpareRoutes) else []
    spares = [spare for spare in found if spare != NO_SLICE]
    return Route(tuple(routes.candidates[event].tolist()), tuple(routes.always.tolist()), tuple(spares))


def place_one(partitioning: Partitioning, number: int, form: NormalForm) -> set[int]:
    """The slices that store one subscription."""
    if not form.conjunctions:
        return set()
    if isinstance(partitioning, Replicated):
        return set(range(len(partitioning.slices)))
    if isinstance(partitioning, HashPartitioning):
        return {_hashed(number, list(range(len(partitioning.slices))))}
    assert isinstance(partitioning, AttributeSpace)
    return _place_in_space(partitioning, number, form)


def route_one(partitioning: Partitioning, value_of: Callable[[Path], Any]) -> Route:
    """Where one event goes; ``value_of`` gives its attributes, ABSENT for a missing one."""
    everywhere = tuple(range(len(partitioning.slices)))
    if isinstance(partitioning, Replicated):
        return Route(everywhere)
    if isinstance(partitioning, HashPartitioning):
        return Route((), everywhere)
    assert isinstance(partitioning, AttributeSpace)
    segments = [segment_of(axis, value_of(axis.path)) for axis in partitioning.axes]
    candidates = [
        i
        for i, found in enumerate(partitioning.slices)
        if found.segment is not None and segments[found.dimension or 0] == found.segment
    ]
    holders = {partitioning.slices[i].matcher for i in candidates}
    spares = _spares(partitioning)[holders.pop()] if len(holders) == 1 else []
    return Route(tuple(candidates), tuple(_hash_slices(partitioning)), tuple(spares))


def segment_of(axis: Axis, value: Any) -> int:
    """The segment that contains an event's value."""
    return bisect_right(axis.boundaries, place_before(value))


def overlapped(axis: Axis, values: ValueSet | None) -> set[int]:
    """The segments that a set of values overlaps: M^i(S) of the paper, section III.A."""
    return {
        segment
        for low, high in intervals(values)
        for segment in range(bisect_right(axis.boundaries, low), bisect_left(axis.boundaries, high) + 1)
    }


def _place_in_space(space: AttributeSpace, number: int, form: NormalForm) -> set[int]:
    segments = [
        set().union(*(overlapped(axis, values) for values in projection(form, axis.path)))
        for axis in space.axes
    ]
    hashed = _hash_slices(space)
    is_wide = [
        len(found) > space.wide_share * axis.segment_count
        for axis, found in zip(space.axes, segments, strict=True)
    ]
    if hashed and all(is_wide):
        return {_hashed(number, hashed)}
    found = {
        i
        for i, each in enumerate(space.slices)
        if each.segment is not None and each.segment in segments[each.dimension or 0]
    }
    holders = [
        {owners[segment] for segment in mine} for owners, mine in zip(space.owners, segments, strict=True)
    ]
    for matcher in set.intersection(*holders):
        found |= set(_spares(space)[matcher])
    return found


def _hashed(number: int, slices: list[int]) -> int:
    return slices[int(hash_slice(np.array([number], np.uint32), len(slices))[0])]


def _hash_slices(space: AttributeSpace) -> list[int]:
    return [i for i, found in enumerate(space.slices) if found.dimension is None]


def _spares(space: AttributeSpace) -> dict[int, list[int]]:
    """The spare slices that hold what is concentrated at each matcher; as many for each, in their order."""
    spares = [
        i for i, found in enumerate(space.slices) if found.segment is None and found.dimension is not None
    ]
    matchers = sorted({owner for owners in space.owners for owner in owners})
    each = len(spares) // len(matchers)
    return {matcher: spares[n * each : (n + 1) * each] for n, matcher in enumerate(matchers)}
