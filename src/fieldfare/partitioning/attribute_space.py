"""mPartition: multi-dimensional partitioning of the subscription space (Li et al. 2011, section III.A).

Each of k searchable attributes is cut into segments, and every segment has an owner among the matchers. A
subscription is stored k times: for each attribute in every segment that its range overlaps, each in a slice
of its own, so that a matcher keeps the sets of its segments apart. Whichever attribute an event is forwarded
along, the slice of the segment that it falls into has every subscription that it can match, exactly once::

    slices   k times N_i   segment j of attribute i        held by its owner
             H             subscriptions wide everywhere   held in turn; every event visits all

Deviations from the paper:

* A subscription that overlaps more than ``wide_share`` of the segments on *every* attribute gains nothing
  from being stored everywhere. It is stored once, in one of H hash slices, which every event visits, too.
  (The paper's third item of future work.)
* The paper replicates a subscription whose copies all fall on one matcher to that matcher's neighbours. Here
  a slice is a file that any worker can read, so no slice has a replica. Replicas are in ``lab/``.
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
from fieldfare.partitioning.extents import Extents, Pairs
from fieldfare.partitioning.strategy import Placement, Routes, Slice, hash_slice

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
    """

    axes: tuple[Axis, ...]
    owners: tuple[tuple[int, ...], ...]
    hash_owners: tuple[int, ...] = ()
    wide_share: float = WIDE_SHARE

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
        return tuple(segments + hashed)

    @property
    def originals(self) -> tuple[int, ...]:
        return tuple(range(len(self.slices)))

    @cached_property
    def _segment_base(self) -> list[int]:
        """The number of each dimension's first slice, then that of the first hash slice."""
        return [0, *np.cumsum([axis.segment_count for axis in self.axes]).tolist()]

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
        return Placement.from_pairs(len(self.slices), slices, subscriptions)

    def _wide(self, overlaps: Sequence[Pairs], extents: Extents) -> NDArray[np.bool_]:
        wide = extents.can_match.copy() if self.hash_owners else np.zeros(len(extents), np.bool_)
        for dimension, (subscription, _) in enumerate(overlaps):
            counts = np.bincount(subscription, minlength=len(extents))
            wide &= self._is_wide(counts, dimension)
        return wide

    def route(self, columns: ColumnBatch) -> Routes:
        candidates = np.empty((columns.size, len(self.axes)), np.int32)
        for dimension, axis in enumerate(self.axes):
            np.add(axis.locate(columns), self._segment_base[dimension], out=candidates[:, dimension])
        first = self._segment_base[-1]
        return Routes(candidates, np.arange(first, first + len(self.hash_owners), dtype=np.int32))
