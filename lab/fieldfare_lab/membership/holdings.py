"""The subscriptions that a matcher stores: a set for each dimension, and how such a set is halved."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from fieldfare.filters import NormalForm
from fieldfare.filters.values import BEFORE
from fieldfare.model import Path
from fieldfare.partitioning.axis import NUMBERS, Place, intervals
from fieldfare.partitioning.extents import projection
from fieldfare_lab.membership.messages import StoredSubscription
from fieldfare_lab.membership.table import Span, overlap


def stored_of(number: int, form: NormalForm, paths: Iterable[Path]) -> StoredSubscription:
    """Return a subscription with its spans on each searchable attribute."""
    spans = [tuple(span for values in projection(form, path) for span in intervals(values)) for path in paths]
    return StoredSubscription(number, tuple(spans))


class Holdings:
    """The subscriptions of one matcher, k sets of them (Li et al. 2011, section III.A: S^i(M_j))."""

    def __init__(self, dimension_count: int) -> None:
        self.sets: list[dict[int, StoredSubscription]] = [{} for _ in range(dimension_count)]

    def store(self, dimension: int, subscriptions: Iterable[StoredSubscription]) -> None:
        """Add subscriptions, replacing those with the same numbers."""
        self.sets[dimension].update((stored.number, stored) for stored in subscriptions)

    def within(self, dimension: int, span: Span) -> tuple[StoredSubscription, ...]:
        """Return the subscriptions that overlap a span."""
        return tuple(stored for stored in self.sets[dimension].values() if _meets(stored, dimension, span))

    def keep_within(self, dimension: int, span: Span | None) -> None:
        """Drop the subscriptions that do not overlap a span; all if it is None."""
        kept = () if span is None else self.within(dimension, span)
        self.sets[dimension] = {stored.number: stored for stored in kept}

    @property
    def size(self) -> int:
        """Number of subscriptions, counted once per dimension."""
        return sum(map(len, self.sets))

    def middle(self, dimension: int, span: Span) -> Place | None:
        """Return where to split a span so that about half of its subscriptions begin on either side.

        None if there is no such place: no subscription begins inside, and there is no number to split at.
        """
        low, high = span
        starts = sorted(
            start
            for stored in self.within(dimension, span)
            for start, end in stored.spans[dimension]
            if low < start < high
        )
        halves = starts[len(starts) // 2 :] + starts[: len(starts) // 2]
        return next((place for start in halves if low < (place := _half_open(start)) < high), _midway(span))


def _meets(stored: StoredSubscription, dimension: int, span: Span) -> bool:
    return any(overlap(found, span) for found in stored.spans[dimension])


def _half_open(place: Place) -> Place:
    """Return the same place as a boundary, which is never after a value."""
    return (*place[:2], BEFORE) if len(place) == 3 else place


def _midway(span: Span) -> Place | None:
    """Return a number in the middle of a span, or zero, or None."""
    low, high = span
    middle = Decimal(0)
    if len(low) == len(high) == 3 and low[0] == high[0] == NUMBERS:
        middle = (low[1] + high[1]) / 2
    place = (NUMBERS, middle, BEFORE)
    return place if low < place < high else None
