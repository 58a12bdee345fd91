"""An index of many parts, and the writer's side that keeps it up to date change by change.

A *snapshot* part holds all versions as of some revision. Later changes make small *delta* parts, which
are folded together so that there are never many, and *closings*, which end versions in parts that are
written already. Both are cheap; a new snapshot, built elsewhere, takes them in (`LiveIndex.rebase`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.explanation import IndexExplanation, IndexPlace
from fieldfare.matching.grouping import Matches, Pairs
from fieldfare.matching.libraries import library_of
from fieldfare.matching.library import Library
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import Closings, IndexEntry
from fieldfare.matching.windows import find_pairs
from fieldfare.model import OPEN_END, Change, Path

DELTAS_MAX = 7
"""Delta parts at most: each costs every batch a little; folding them more often costs the writer more."""
FOLD_GROWTH = 2
"""A delta joins a fold if it is at most this many times as large as the smaller ones together."""


class Index:
    """What a batch of events is matched against: parts that together hold every version once."""

    def __init__(self, parts: Sequence[Part] = (), closings: Closings | None = None) -> None:
        self.parts = tuple(parts)
        self.closings = closings if closings is not None else Closings()
        self.paths: tuple[Path, ...] = tuple(
            dict.fromkeys(path for part in self.parts for path in part.paths)
        )
        """The attributes that a batch of events must have as columns."""

    @property
    def size(self) -> int:
        """How many subscription versions the parts hold."""
        return sum(part.size for part in self.parts)

    def match(self, columns: ColumnBatch, stamps: NDArray[np.int64]) -> Matches:
        """Which subscriptions each event matches.

        Parameters
        ----------
        columns
            n events, with a column for every one of `paths` that some event has.
        stamps : int64[n], the stamp of each event's record; a version counts for an event if
            valid_from <= stamp < valid_to
        """
        return Matches.from_pairs(columns.size, self.collect(columns, stamps))

    def collect(self, columns: ColumnBatch, stamps: NDArray[np.int64]) -> list[Pairs]:
        """The same as pairs in any order."""
        return list(self.find(columns, stamps))

    def find(self, columns: ColumnBatch, stamps: NDArray[np.int64]) -> Iterator[Pairs]:
        """The same as they are found, so that not all of them need be in memory."""
        return find_pairs(self.parts, columns, stamps, self.closings)

    def explain(self) -> IndexExplanation:
        """What was chosen for the filters of each part."""
        return IndexExplanation(tuple(part.explain() for part in self.parts), len(self.closings))

    def explain_subscription(self, number: int) -> tuple[IndexPlace, ...] | None:
        """What was chosen for a subscription's present version; None if the index has none.

        Nothing: no event can match its filter.
        """
        wanted = np.array([number], np.uint32)
        for place, part in enumerate(self.parts):
            version = int(part.open_versions(wanted)[0])
            if version >= 0 and version not in self.closings.versions:
                return part.explain_version(place, version)
        return None


@dataclass(frozen=True, slots=True)
class Applied:
    """What a `LiveIndex` did: the index as it is now, and what changed of its parts.

    `written` are the new parts, to be saved; `dropped` those that the index has no more. Both are told
    apart by identity. `closings_changed` says whether ``index.closings`` must be saved again.
    """

    index: Index
    written: tuple[Part, ...]
    dropped: tuple[Part, ...]
    closings_changed: bool


@dataclass(slots=True)
class _Version:
    """A version in a delta: what put it, and the revision that ended it."""

    change: Change
    closed_by: int = OPEN_END

    def entry(self, library: Library | None) -> IndexEntry:
        change = self.change
        assert change.filter is not None
        dialect = change.dialect or "sql"
        compiled = change.compiled
        if compiled is None:
            compiled = (library or library_of(dialect)).compile(change.filter, dialect)
        return IndexEntry(
            change.revision, change.number, change.revision, self.closed_by, compiled, change.filter, dialect
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Delta:
    part: Part
    versions: list[_Version]


class _ClosingLog:
    """Versions ended in parts already built, sorted, and the revisions that ended them."""

    def __init__(self) -> None:
        self.arrays = np.zeros((2, 0), np.int64)  # version, closed_by

    def has(self, versions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these versions have ended."""
        known = self.arrays[0]
        if not len(known):
            return np.zeros(len(versions), bool)
        place = np.minimum(np.searchsorted(known, versions), len(known) - 1)
        return np.asarray(known[place] == versions)

    def add(self, closed: Mapping[int, int]) -> None:
        if closed:
            new = np.array(sorted(closed.items()), np.int64).T
            self.arrays = np.insert(self.arrays, np.searchsorted(self.arrays[0], new[0]), new, axis=1)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        self.arrays = self.arrays[:, mask]

    def closings(self) -> Closings:
        return Closings(self.arrays[0].copy(), self.arrays[1].copy())


class LiveIndex:
    """The writer's side: a machine without I/O that turns changes into parts and closings.

    It starts from a snapshot as of a revision (or from nothing) and is given all later changes in
    order. Changes that it has seen already are left out, so a caller may repeat some.
    """

    def __init__(
        self, snapshot: Part | None = None, revision: int = 0, *, library: Library | None = None
    ) -> None:
        self.revision = revision
        self._snapshot = snapshot
        self._library = library
        self._deltas: list[_Delta] = []
        self._open: dict[int, _Version] = {}
        self._closed = _ClosingLog()
        self._closings = Closings()

    @property
    def index(self) -> Index:
        """The index as it is now."""
        snapshot = [self._snapshot] if self._snapshot is not None else []
        return Index((*snapshot, *(delta.part for delta in self._deltas)), self._closings)

    @property
    def delta_size(self) -> int:
        """Versions that are in delta parts: what a new snapshot would take in."""
        return sum(delta.part.size for delta in self._deltas)

    def apply(self, changes: Iterable[Change]) -> Applied:
        """Take in changes, in the order of their revisions; costs in proportion to them, and folding."""
        pending: list[_Version] = []
        pending_ids: set[int] = set()
        closed: dict[int, int] = {}
        new = [change for change in changes if change.revision > self.revision]
        for change, in_snapshot in zip(new, self._open_in_snapshot(new), strict=True):
            if change.revision <= self.revision:
                continue
            self.revision = change.revision
            previous = self._open.pop(change.number, None)
            if previous is not None:
                previous.closed_by = change.revision
                version: int | None = previous.change.revision
                if version in pending_ids:
                    version = None
            else:
                version = in_snapshot
            if version is not None and version not in closed:
                closed[version] = change.revision
            if change.filter is not None:
                current = self._open[change.number] = _Version(change)
                pending.append(current)
                pending_ids.add(change.revision)
        self._closed.add(closed)
        return self._take_in(pending, bool(closed))

    def _open_in_snapshot(self, changes: Sequence[Change]) -> list[int | None]:
        """For each change the version of its subscription in the snapshot that it would end."""
        if self._snapshot is None:
            return [None] * len(changes)
        numbers = np.fromiter((change.number for change in changes), np.uint32, len(changes))
        versions = self._snapshot.open_versions(numbers)
        ended = (versions < 0) | self._closed.has(versions)
        return [
            None if end else version for version, end in zip(versions.tolist(), ended.tolist(), strict=True)
        ]

    def _take_in(self, pending: list[_Version], closings_changed: bool) -> Applied:
        """Add a delta of new versions, folded with others if there would be too many."""
        groups = [pending] if pending else []
        dropped: list[_Delta] = []
        if pending and len(self._deltas) >= DELTAS_MAX:
            groups, dropped = self._fold(pending)
        written = [_Delta(self._build(group), group) for group in groups]
        gone = {id(delta) for delta in dropped}
        self._deltas = [delta for delta in self._deltas if id(delta) not in gone] + written
        folded = np.array(
            sorted(version.change.revision for delta in dropped for version in delta.versions), np.int64
        )
        if self._closed.has(folded).any():  # what ended them is in the new part itself
            self._closed.keep(~np.isin(self._closed.arrays[0], folded))
            closings_changed = True
        return self._applied(written, dropped, closings_changed)

    def _fold(self, pending: list[_Version]) -> tuple[list[list[_Version]], list[_Delta]]:
        """Which versions become one delta: the smallest deltas, up to one that is much larger than they.

        So a version is folded again only when its delta has grown by half: a logarithmic number of times.
        """
        candidates: list[tuple[int, int, _Delta | None]] = [(len(pending), -1, None)]
        candidates += [(len(delta.versions), i, delta) for i, delta in enumerate(self._deltas)]
        candidates.sort(key=lambda candidate: candidate[:2])
        chosen = candidates[:2]
        total = sum(size for size, _, _ in chosen)
        for candidate in candidates[2:]:
            if candidate[0] > FOLD_GROWTH * total:
                break
            chosen.append(candidate)
            total += candidate[0]
        dropped = [delta for _, _, delta in chosen if delta is not None]
        folded = [version for delta in dropped for version in delta.versions]
        if any(delta is None for _, _, delta in chosen):
            return [folded + pending], dropped
        return [folded, pending], dropped

    def rebase(self, snapshot: Part, revision: int) -> Applied:
        """Take a new snapshot, built from the registry's versions as known at `revision`.

        What came after `revision` stays, in one delta and in closings.
        """
        if revision > self.revision:
            raise ValueError(
                f"the snapshot is of revision {revision}, and this index only of {self.revision}"
            )
        dropped = self._deltas
        versions = [version for delta in dropped for version in delta.versions]
        closed = {
            version.change.revision: version.closed_by
            for version in versions
            if version.change.revision <= revision < version.closed_by < OPEN_END
        }
        later = self._closed.arrays[
            :, (self._closed.arrays[1] > revision) & (self._closed.arrays[0] <= revision)
        ]
        closed |= dict(later.T.tolist())
        kept = [version for version in versions if version.change.revision > revision]
        gone = [self._snapshot] if self._snapshot is not None and self._snapshot is not snapshot else []
        self._snapshot = snapshot
        self._open = {n: v for n, v in self._open.items() if v.change.revision > revision}
        self._closed = _ClosingLog()
        self._closed.add(closed)
        self._deltas = [_Delta(self._build(kept), kept)] if kept else []
        applied = self._applied(self._deltas, dropped, True)
        return Applied(applied.index, applied.written, (*gone, *applied.dropped), True)

    def _build(self, versions: list[_Version]) -> Part:
        return build_part([version.entry(self._library) for version in versions], self._library)

    def _applied(self, written: list[_Delta], dropped: list[_Delta], closings_changed: bool) -> Applied:
        if closings_changed:
            self._closings = self._closed.closings()
        return Applied(
            self.index,
            tuple(delta.part for delta in written),
            tuple(delta.part for delta in dropped),
            closings_changed,
        )
