"""Partitionings that do not depend on values: `hash`, and the paper's baseline `replicated`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.model import Path
from fieldfare.partitioning.extents import Extents
from fieldfare.partitioning.strategy import (
    Placement,
    Routes,
    Slice,
    hash_slice,
)


@dataclass(frozen=True)
class HashPartitioning:
    """Each subscription in one slice, by the hash of its number; every event visits every slice.

    E-StreamHub's matcher operator. The matches of an event are merged over all slices.

    Parameters
    ----------
    matcher_count
        Number of matchers, numbered from 0.
    slice_count
        Number of slices, assigned to the matchers in turn. 0: one per matcher.
    """

    matcher_count: int
    slice_count: int = 0

    @property
    def slices(self) -> tuple[Slice, ...]:
        return tuple(Slice(i % self.matcher_count) for i in range(self.slice_count or self.matcher_count))

    @property
    def originals(self) -> tuple[int, ...]:
        return tuple(range(len(self.slices)))

    @property
    def paths(self) -> tuple[Path, ...]:
        return ()

    def place(self, extents: Extents) -> Placement:
        count = len(self.slices)
        stored = np.flatnonzero(extents.can_match).astype(np.int32)
        return Placement.from_pairs(count, [hash_slice(extents.numbers[stored], count)], [stored])

    def route(self, columns: ColumnBatch) -> Routes:
        always = np.arange(len(self.slices), dtype=np.int32)
        return Routes(np.zeros((columns.size, 0), np.int32), always)


ONE_SLICE = HashPartitioning(1)
"""Everything in one slice, at one matcher."""


@dataclass(frozen=True)
class Replicated:
    """Each subscription on every matcher; an event goes to any one (Li et al. 2011, section IV.B).

    The paper's full-replication baseline, whose dispatchers forward at random. Slice i is matcher i's copy of
    everything.
    """

    matcher_count: int

    @property
    def slices(self) -> tuple[Slice, ...]:
        return tuple(Slice(matcher) for matcher in range(self.matcher_count))

    @property
    def originals(self) -> tuple[int, ...]:
        return (0,) * self.matcher_count

    @property
    def paths(self) -> tuple[Path, ...]:
        return ()

    def place(self, extents: Extents) -> Placement:
        stored = np.flatnonzero(extents.can_match).astype(np.int32)
        start = np.arange(self.matcher_count + 1, dtype=np.int64) * len(stored)
        return Placement(start, np.tile(stored, self.matcher_count))

    def route(self, columns: ColumnBatch) -> Routes:
        copies = np.arange(self.matcher_count, dtype=np.int32)
        candidates = np.broadcast_to(copies, (columns.size, self.matcher_count))
        return Routes(candidates, np.zeros(0, np.int32))
