"""mPartition: multi-dimensional partitioning of the subscription space (Li et al. 2011, section III.A).

Each of k searchable attributes is cut into segments, and every segment has an owner among the matchers. A
subscription is stored k times: for each attribute in every segment that its range overlaps, each in a slice
of its own, so that a matcher keeps the sets of its segments apart. Whichever attribute an event is forwarded
along, the slice of the segment that it falls into has every subscription that it can match, exactly once::

    slices   k times N_i   segment j of attribute i        held by its owner
             H             subscriptions wide everywhere   held in turn; every event visits all
             M times (k-1) replicas                        held by a clockwise neighbour

Deviations from the paper:

* A subscription that overlaps more than ``wide_share`` of the segments on *every* attribute gains nothing
  from being stored everywhere. It is stored once, in one of H hash slices, which every event visits, too.
  (The paper's third item of future work.)
* The paper replicates a subscription whose copies all fall on one matcher to that matcher's neighbours. That
  saves the subscription, but not the event: with this matcher down, an event whose candidates are all this
  matcher must find *everything* that it can match in one place. So every subscription that overlaps segments
  of one matcher on all attributes is replicated, which includes the paper's, and an event whose candidates
  are all one matcher has the neighbours' replicas as spares.
* Attributes may have different numbers of segments: a leaving matcher's are merged into its neighbours', and
  a matcher may own several, or none, of an attribute. Few matchers with many segments each search nearly as
  little as many matchers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.model import Path
from fieldfare.partitioning.axis import Axis
from fieldfare.partitioning.extents import Extents, Pairs, distinct
from fieldfare.partitioning.strategy import (
    NO_SLICE,
    Placement,
    Routes,
    Slice,
    hash_slice,
)

WIDE_SHARE = 0.75
"""Default of ``wide_share``: a subscription wider than three quarters of every axis is hashed."""


@dataclass(frozen=True)
class AttributeSpace:
    """BlueDove's partitioning.

    Parameters
    ----------
    axes
        The k searchable attributes with their boundaries.
    owners
        For each axis the matcher that owns each segment.
    hash_owners
        For each hash slice the matcher that holds it. Empty: no subscription is hashed.
    wide_share
        The share of segments, 0 to 1, above which a subscription counts as wide on an attribute. Higher:
        fewer subscriptions are hashed, and more copies are stored; lower: the reverse, and events have to
        search more in hash slices. 1: no subscription is wide.
    replicated
        Whether there are spares. Without them an event whose candidates are all one matcher that is down
        waits until its segments are taken over; spares are unnecessary if a slice is a file that any worker
        can read.
    """

    axes: tuple[Axis, ...]
    owners: tuple[tuple[int, ...], ...]
    hash_owners: tuple[int, ...] = ()
    wide_share: float = WIDE_SHARE
    replicated: bool = True

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError("an attribute space needs at least one searchable attribute")
        if [axis.segment_count for axis in self.axes] != [len(owners) for owners in self.owners]:
            raise ValueError("every segment has one owner")

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(axis.path for axis in self.axes)

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        segments = [
            Slice(owner, dimension, segment)
            for dimension, owners in enumerate(self.owners)
            for segment, owner in enumerate(owners)
        ]
        hashed = [Slice(owner) for owner in self.hash_owners]
        spares = [
            Slice(self._neighbour(matcher, dimension), dimension)
            for matcher in self.matchers
            for dimension in self._spare_dimensions
        ]
        return tuple(segments + hashed + spares)

    @cached_property
    def originals(self) -> tuple[int, ...]:
        # All spares of a matcher are copies of one set, which is not in any other slice.
        count = len(self._spare_dimensions)
        spares = range(self._spare_base, len(self.slices))
        return (*range(self._spare_base), *(spare - (spare - self._spare_base) % count for spare in spares))

    @cached_property
    def matchers(self) -> tuple[int, ...]:
        """The matchers that own a segment, ascending."""
        return tuple(sorted({owner for owners in self.owners for owner in owners}))

    @property
    def _spare_dimensions(self) -> range:
        """Dimensions of replicas: the first copy is the matcher's own, the others are at its neighbours."""
        return range(1, len(self.axes) if self.replicated and len(self.matchers) > 1 else 1)

    def _neighbour(self, matcher: int, dimension: int) -> int:
        """Return the clockwise neighbour: the owner of the next segment that the matcher does not own."""
        owners = self.owners[dimension]
        if matcher not in owners:  # it owns nothing here: any other will do
            return next(owner for owner in self.matchers if owner != matcher)
        after = owners.index(matcher) + 1
        ring = owners[after:] + owners[:after]
        others = [owner for owner in (*ring, *self.matchers) if owner != matcher]
        return others[0]

    @cached_property
    def _segment_base(self) -> list[int]:
        """The number of each dimension's first slice, then that of the first hash slice."""
        return [0, *np.cumsum([axis.segment_count for axis in self.axes]).tolist()]

    @property
    def _spare_base(self) -> int:
        return self._segment_base[-1] + len(self.hash_owners)

    def _is_wide(self, overlapped: Any, dimension: int) -> Any:
        """Return whether these numbers of segments (int or array) are too many to store a copy in each."""
        return overlapped > self.wide_share * self.axes[dimension].segment_count

    def place(self, extents: Extents) -> Placement:
        overlaps = [extents.attributes[axis.path].overlapped(axis) for axis in self.axes]
        wide = self._wide(overlaps, extents)
        slices, subscriptions = [], []
        for base, (subscription, segment) in zip(self._segment_base, overlaps, strict=False):
            kept = ~wide[subscription]
            slices.append(segment[kept] + np.int32(base))
            subscriptions.append(subscription[kept])
        hashed = np.flatnonzero(wide).astype(np.int32)
        if len(hashed):
            chosen = hash_slice(extents.numbers[hashed], len(self.hash_owners))
            slices.append(chosen + np.int32(self._segment_base[-1]))
            subscriptions.append(hashed)
        for slice_number, concentrated in self._replicas(overlaps, wide):
            slices.append(np.full(len(concentrated), slice_number, np.int32))
            subscriptions.append(concentrated)
        return Placement.from_pairs(len(self.slices), slices, subscriptions)

    def _wide(self, overlaps: Sequence[Pairs], extents: Extents) -> NDArray[np.bool_]:
        wide = extents.can_match.copy() if self.hash_owners else np.zeros(len(extents), np.bool_)
        for dimension, (subscription, _) in enumerate(overlaps):
            counts = np.bincount(subscription, minlength=len(extents))
            wide &= self._is_wide(counts, dimension)
        return wide

    def _replicas(
        self, overlaps: Sequence[Pairs], wide: NDArray[np.bool_]
    ) -> list[tuple[int, NDArray[np.int32]]]:
        """Return the subscriptions in each spare slice: they overlap its original on all attributes."""
        if not self._spare_dimensions:
            return []
        span = self.matchers[-1] + 1
        shared: NDArray[np.int64] | None = None
        for owners, (subscription, segment) in zip(self.owners, overlaps, strict=True):
            kept = ~wide[subscription]
            keys = distinct(
                subscription[kept].astype(np.int64) * span + np.array(owners, np.int64)[segment[kept]]
            )
            shared = keys if shared is None else np.intersect1d(shared, keys, assume_unique=True)
        assert shared is not None
        matcher, subscription = shared % span, (shared // span).astype(np.int32)
        found = []
        for place, original in enumerate(self.matchers):
            concentrated = subscription[matcher == original]
            for step in range(len(self._spare_dimensions)):
                found.append((self._spare_base + place * len(self._spare_dimensions) + step, concentrated))
        return found

    def route(self, columns: ColumnBatch) -> Routes:
        candidates = np.empty((columns.size, len(self.axes)), np.int32)
        for dimension, axis in enumerate(self.axes):
            np.add(axis.locate(columns), self._segment_base[dimension], out=candidates[:, dimension])
        always = np.arange(self._segment_base[-1], self._spare_base, dtype=np.int32)
        return Routes(candidates, always, self._spares(candidates))

    def _spares(self, candidates: NDArray[np.int32]) -> NDArray[np.int32]:
        count = len(self._spare_dimensions)
        spares = np.full((len(candidates), count), NO_SLICE, np.int32)
        if not count:
            return spares
        owner = self._owner_of_slice[candidates]
        alone = np.flatnonzero((owner == owner[:, :1]).all(axis=1))
        place = np.searchsorted(np.array(self.matchers), owner[alone, 0])
        spares[alone] = self._spare_base + place[:, None] * count + np.arange(count)
        return spares

    @cached_property
    def _owner_of_slice(self) -> NDArray[np.int32]:
        return np.array([owner for owners in self.owners for owner in owners], np.int32)
