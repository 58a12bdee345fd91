"""The interface of all partitionings: slices, their matchers and content, and where an event goes.

Every strategy cuts the subscriptions of a space into *slices*; a slice is held by one matcher and searched
separately. An event meets every subscription exactly once if it visits

    one of its candidates, which the forwarding policy selects        routes.candidates[e, any]
    and each of the slices that every event visits                    routes.always

The candidates of an event are alternatives: each alone has every subscription that the event can match among
those that are not in an `always` slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.model import Path
from fieldfare.partitioning.extents import Extents

NO_SLICE = -1


class Slice(NamedTuple):
    """A fixed part of the subscriptions: the unit that is placed, moved and loaded.

    `dimension` and `segment` identify its segment, if the strategy has segments.
    """

    matcher: int
    dimension: int | None = None
    segment: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The slices that the n events of a batch visit.

    candidates is int32[n, c], always int32[a].
    """

    candidates: NDArray[np.int32]
    always: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The content of each slice, as CSR: ``subscriptions[start[i]:start[i + 1]]``, ascending.

    start is int64[slices + 1]; subscriptions int32[m], indexes in the `Extents` that were placed.
    """

    start: NDArray[np.int64]
    subscriptions: NDArray[np.int32]

    def of(self, slice_number: int) -> NDArray[np.int32]:
        """Return the subscriptions in one slice."""
        return self.subscriptions[self.start[slice_number] : self.start[slice_number + 1]]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of subscriptions in each slice: |S^i(M_j)| of the paper."""
        return np.diff(self.start)

    @classmethod
    def from_pairs(
        cls, slice_count: int, slices: list[NDArray[np.int32]], subscriptions: list[NDArray[np.int32]]
    ) -> Placement:
        """Collect (slice, subscription) pairs, each of which must occur once."""
        in_slice = np.concatenate([np.zeros(0, np.int32), *slices])
        subscription = np.concatenate([np.zeros(0, np.int32), *subscriptions])
        order = np.lexsort((subscription, in_slice))
        start = np.searchsorted(in_slice[order], np.arange(slice_count + 1)).astype(np.int64)
        return cls(start, subscription[order].astype(np.int32))


class Partitioning(Protocol):
    """A strategy: assigns subscriptions and events to slices."""

    @property
    def slices(self) -> tuple[Slice, ...]:
        """All slices; a slice's number is its index here."""

    @property
    def originals(self) -> tuple[int, ...]:
        """For each slice the first one with the same content: its own number if it is not a copy."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The attributes that extents and events must have."""

    def place(self, extents: Extents) -> Placement:
        """Assign subscriptions to slices."""

    def route(self, columns: ColumnBatch) -> Routes:
        """Return the slices that the events of a batch visit."""


def hash_number(numbers: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Hash subscription numbers, which the registry assigns in sequence (the finaliser of splitmix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def hash_slice(numbers: NDArray[np.uint32], slice_count: int) -> NDArray[np.int32]:
    """Return the slice of each subscription number among `slice_count`, by hash: int32[s]."""
    return (hash_number(numbers) % np.uint64(slice_count)).astype(np.int32)
