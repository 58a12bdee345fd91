"""Extents: the intervals of subscriptions on the axes of attributes, as arrays.

Partitioning repeatedly needs the segments that a subscription overlaps: for each attribute that might be
searched, for each way to cut it, after each drift. So filters are read once::

    places      sorted, distinct, the ends of all intervals of one attribute   p0 < p1 < p2 < ...
    low, high   int32[q] each piece is the interval from places[low] to places[high]
    owner       int32[q] the subscription of each piece

A cut is then found among the places by bisection, and the rest is comparing integers: a million subscriptions
are assigned to new segments without reading a filter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters import NormalForm
from fieldfare.filters.values import ValueSet
from fieldfare.model import Path, derived_text
from fieldfare.partitioning.axis import AXIS_END, AXIS_START, Axis, Place, intervals

Pairs = tuple[NDArray[np.int32], NDArray[np.int32]]
"""(subscription's index, segment), each pair once, ascending."""


def distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct keys, ascending; much faster than np.unique if they are nearly so already."""
    if bool((keys[1:] > keys[:-1]).all()):
        return keys
    ascending: NDArray[np.int64] = np.sort(keys, kind="stable")
    is_new = np.ones(len(ascending), np.bool_)
    is_new[1:] = ascending[1:] > ascending[:-1]
    return np.asarray(ascending[is_new], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class AttributeExtents:
    """The pieces of s subscriptions on one attribute's axis (see the module's text).

    `unconstrained` is the number of subscriptions that do not constrain the attribute: their piece is the
    axis.
    """

    path: Path
    places: list[Place]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    owner: NDArray[np.int32]
    unconstrained: int

    def first_and_last(self, axis: Axis) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the first and the last segment that each piece overlaps: int32[q] each."""
        from_low = [bisect_left(self.places, boundary) for boundary in axis.boundaries]
        from_high = [bisect_right(self.places, boundary) for boundary in axis.boundaries]
        first = np.searchsorted(np.array(from_low, np.int32), self.low, side="right")
        last = np.searchsorted(np.array(from_high, np.int32), self.high, side="right")
        return first.astype(np.int32), last.astype(np.int32)

    def overlapped(self, axis: Axis) -> Pairs:
        """Return the segments that each subscription overlaps; the batch's twin of `Axis.overlapped`."""
        first, last = self.first_and_last(axis)
        count = last - first + 1
        owner = np.repeat(self.owner, count).astype(np.int64)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        keys = distinct(owner * axis.segment_count + np.repeat(first, count) + step)
        return (keys // axis.segment_count).astype(np.int32), (keys % axis.segment_count).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """The subscriptions of a space, in the form that partitioning uses.

    Attributes
    ----------
    numbers : uint32[s]
        The registry's number of each subscription.
    can_match : bool[s]
        False if the normal form is empty: such a filter never matches, and is not stored.
    attributes
        The subscriptions' pieces on each requested attribute.
    """

    numbers: NDArray[np.uint32]
    can_match: NDArray[np.bool_]
    attributes: dict[Path, AttributeExtents]

    def __len__(self) -> int:
        return len(self.numbers)


def projection(form: NormalForm, path: Path) -> list[ValueSet | None]:
    """Return the values that a filter allows for an attribute: a set per conjunction, None for any value.

    An event can match only with a value in one of them. The list is [None] as soon as one conjunction does
    not constrain the attribute.
    """
    found: list[ValueSet | None] = []
    for conjunction in form.conjunctions:
        for constrained, values in conjunction.constraints:
            if constrained == path:
                found.append(values)
                break
        else:
            return [None]
    return found


def extents_of(subscriptions: Iterable[tuple[int, NormalForm]], paths: Sequence[Path]) -> Extents:
    """Compute the extents of subscriptions (number, normal form) on some attributes.

    An inexact conjunction is a superset of its filter's matches, and so is its extent: nothing is lost, and
    the matcher confirms.
    """
    given = list(subscriptions)
    numbers = np.fromiter((number for number, _ in given), np.uint32, len(given))
    can_match = np.fromiter((bool(form.conjunctions) for _, form in given), np.bool_, len(given))
    forms = [form for _, form in given]
    return Extents(numbers, can_match, {path: _attribute_extents(forms, path) for path in paths})


def _attribute_extents(forms: Sequence[NormalForm], path: Path) -> AttributeExtents:
    known: dict[Place, int] = {AXIS_START: 0, AXIS_END: 1}
    lows: list[int] = []
    highs: list[int] = []
    owners: list[int] = []
    unconstrained = 0
    for owner, form in enumerate(forms):
        for values in projection(form, path):
            unconstrained += values is None
            for low, high in intervals(values):
                lows.append(known.setdefault(low, len(known)))
                highs.append(known.setdefault(high, len(known)))
                owners.append(owner)
    places = sorted(known)
    rank = np.empty(len(places), np.int32)
    rank[[known[place] for place in places]] = np.arange(len(places), dtype=np.int32)
    low_ranks, high_ranks = rank[np.array(lows, np.int64)], rank[np.array(highs, np.int64)]
    return AttributeExtents(path, places, low_ranks, high_ranks, np.array(owners, np.int32), unconstrained)


def constrained_paths(forms: Iterable[NormalForm]) -> dict[Path, int]:
    """Return, for each attribute, the number of filters that constrain it in every conjunction.

    Only there it narrows a search. Derived columns are not counted.
    """
    counts: dict[Path, int] = {}
    for form in forms:
        if not form.conjunctions:
            continue
        shared = {path for path, _ in form.conjunctions[0].constraints}
        for conjunction in form.conjunctions[1:]:
            shared &= {path for path, _ in conjunction.constraints}
        for path in shared:
            if derived_text(path) is not None:  # a dispatcher knows attributes only
                continue
            counts[path] = counts.get(path, 0) + 1
    return counts
