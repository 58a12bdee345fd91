"""mPartition with replicas at neighbours, for events whose candidates are all one matcher that is down.

The paper replicates a subscription whose copies all fall on one matcher to that matcher's neighbours (Li et
al. 2011, section III.A). That saves the subscription, but not the event: with this matcher down, an event
whose candidates are all this matcher must find *everything* that it can match in one place. So every
subscription that overlaps segments of one matcher on all attributes is replicated, which includes the
paper's, and an event whose candidates are all one matcher has the neighbours' replicas as spares. In the
service a slice is a file that any worker can read, so replicas are unnecessary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fieldfare.forwarding import ForwardingPolicy, LoadTable, forward_batch
from fieldfare.forwarding.policies import cheapest
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.partitioning import NO_SLICE, AttributeSpace, Extents, Placement, Routes, Slice
from fieldfare.partitioning.extents import distinct


@dataclass(frozen=True, slots=True, eq=False)
class SpareRoutes(Routes):
    """Routes with int32[n, p] spares, NO_SLICE where an event has none."""

    spares: NDArray[np.int32]


@dataclass(frozen=True)
class ReplicatedSpace(AttributeSpace):
    """An attribute space with M times (k-1) more slices: each matcher's replicas, at clockwise neighbours.

    A spare slice has the dimension on which its matcher is the neighbour, and no segment.
    """

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        spares = (
            Slice(self._neighbour(matcher, dimension), dimension)
            for matcher in self.matchers
            for dimension in self._spare_dimensions
        )
        return (*AttributeSpace(self.axes, self.owners, self.hash_owners).slices, *spares)

    @property
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
        return range(1, len(self.axes) if len(self.matchers) > 1 else 1)

    @property
    def _spare_base(self) -> int:
        return self._segment_base[-1] + len(self.hash_owners)

    def _neighbour(self, matcher: int, dimension: int) -> int:
        """Return the clockwise neighbour: the owner of the next segment that the matcher does not own."""
        owners = self.owners[dimension]
        if matcher not in owners:  # it owns nothing here: any other will do
            return next(owner for owner in self.matchers if owner != matcher)
        after = owners.index(matcher) + 1
        ring = owners[after:] + owners[:after]
        others = [owner for owner in (*ring, *self.matchers) if owner != matcher]
        return others[0]

    def place(self, extents: Extents) -> Placement:
        placed = super().place(extents)
        copies = [copy for copy in self._replicas(extents) for _ in self._spare_dimensions]
        start = placed.start.copy()
        start[self._spare_base + 1 :] += np.cumsum([len(copy) for copy in copies], dtype=np.int64)
        return Placement(start, np.concatenate([placed.subscriptions, *copies]))

    def _replicas(self, extents: Extents) -> list[NDArray[np.int32]]:
        """Return for each matcher the subscriptions that overlap its segments on all attributes."""
        overlaps = [extents.attributes[axis.path].overlapped(axis) for axis in self.axes]
        wide = self._wide(overlaps, extents)
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
        return [subscription[matcher == original] for original in self.matchers]

    def route(self, columns: ColumnBatch) -> SpareRoutes:
        routes, count = super().route(columns), len(self._spare_dimensions)
        spares = np.full((columns.size, count), NO_SLICE, np.int32)
        owner = np.array([each.matcher for each in self.slices], np.int32)[routes.candidates]
        alone = np.flatnonzero((owner == owner[:, :1]).all(axis=1))
        place = np.searchsorted(np.array(self.matchers), owner[alone, 0])
        spares[alone] = self._spare_base + place[:, None] * count + np.arange(count)
        return SpareRoutes(routes.candidates, routes.always, spares)


def forward_with_spares(
    policy: ForwardingPolicy, routes: Routes, loads: LoadTable, now: float, live: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Choose a candidate for every event, a spare if no candidate is live, or NO_SLICE."""
    chosen = forward_batch(policy, routes, loads, now, live).chosen
    lost = np.flatnonzero(chosen == NO_SLICE)
    if len(lost) and isinstance(routes, SpareRoutes):
        ahead = np.bincount(chosen[chosen != NO_SLICE], minlength=len(live)).astype(float)
        spares = routes.spares[lost]
        chosen[lost] = cheapest(policy.costs(loads, now, spares, ahead), spares, live)
    return chosen
