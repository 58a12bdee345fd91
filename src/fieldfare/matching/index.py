"""An index of several parts, and the writer's side that updates it change by change.

A *snapshot* part contains all versions valid at some revision. Later changes make small *delta* parts, which
are merged to bound their number, and *closings*, which end versions in existing parts. Both are cheap; a new
snapshot, built elsewhere, absorbs them (`LiveIndex.rebase`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.explanation import IndexExplanation, IndexPlace
from fieldfare.matching.grouping import Matches
from fieldfare.matching.libraries import library_of
from fieldfare.matching.library import Library
from fieldfare.matching.pairs import Pairs
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import Closings, IndexEntry
from fieldfare.matching.windows import find_pairs
from fieldfare.model import Change, Path

DELTAS_MAX = 7
"""Maximum delta parts; more are folded. Each part slows every batch a little; folding costs the writer."""
FOLD_GROWTH = 2
"""Maximum ratio between a delta's size and the total of the smaller ones at which it is folded with them."""


class Index:
    """A searchable index: parts that together contain every version once."""

    def __init__(self, parts: Sequence[Part] = (), closings: Closings | None = None) -> None:
        self.parts = tuple(parts)
        self.closings = closings if closings is not None else Closings()
        self.paths: tuple[Path, ...] = tuple(
            dict.fromkeys(path for part in self.parts for path in part.paths)
        )
        """The attributes that a batch of events must have as columns."""

    @property
    def size(self) -> int:
        """The number of subscription versions in the parts."""
        return sum(part.size for part in self.parts)

    def match(self, columns: ColumnBatch, stamps: NDArray[np.int64]) -> Matches:
        """Find the subscriptions that each event matches.

        Parameters
        ----------
        columns
            n events, with a column for each of `paths` that some event has.
        stamps : int64[n]
            The stamp of each event's record. A version is valid for an event if valid_from <= stamp <
            valid_to.
        """
        return Matches.from_pairs(columns.size, self.collect(columns, stamps))

    def collect(self, columns: ColumnBatch, stamps: NDArray[np.int64]) -> list[Pairs]:
        """Like `match`, but return the pairs in any order."""
        return list(self.find(columns, stamps))

    def find(self, columns: ColumnBatch, stamps: NDArray[np.int64]) -> Iterator[Pairs]:
        """Like `match`, but yield the pairs as they are found, so that they need not all fit in memory."""
        return find_pairs(self.parts, columns, stamps, self.closings)

    def explain(self) -> IndexExplanation:
        """Return the structures chosen for the filters of each part."""
        return IndexExplanation(tuple(part.explain() for part in self.parts), len(self.closings))

    def explain_subscription(self, number: int) -> tuple[IndexPlace, ...] | None:
        """Return the structures chosen for a subscription's current version; None if the index has none.

        The result is empty if no event can match the filter.
        """
        wanted = np.array([number], np.uint32)
        for place, part in enumerate(self.parts):
            version = int(part.open_versions(wanted)[0])
            if version >= 0 and version not in self.closings.versions:
                return part.explain_version(place, version)
        return None


@dataclass(frozen=True, slots=True)
class Applied:
    """The effect of a `LiveIndex` operation: the current index, and the changes to its parts.

    `written` are the new parts, to be saved; `dropped` are the removed parts. Both are compared by identity.
    `closings_changed` says whether ``index.closings`` must be saved again.
    """

    index: Index
    written: tuple[Part, ...]
    dropped: tuple[Part, ...]
    closings_changed: bool


def entry_of(version: Change, library: Library | None = None) -> IndexEntry:
    """Return the entry of a version, compiled by `library` or that of its dialect if it is not compiled."""
    assert version.filter is not None
    dialect, compiled = version.dialect or "sql", version.compiled
    if compiled is None:
        compiled = (library or library_of(dialect)).compile(version.filter, dialect)
    revision = version.revision
    return IndexEntry(
        revision,
        version.number,
        revision,
        version.closed_by,
        compiled,
        version.filter,
        dialect,
        version.destination,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Delta:
    part: Part
    versions: list[Change]


class _ClosingLog:
    """Versions ended in existing parts, sorted, and the revisions that ended them."""

    def __init__(self) -> None:
        self.arrays = np.zeros((2, 0), np.int64)  # version, closed_by

    def has(self, versions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these versions have ended: bool[k]."""
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
    """The writer's side of an index: a state machine without I/O that turns changes into parts and closings.

    It starts from a snapshot at some revision (or empty) and receives all later changes in order. Changes up
    to the current `revision` are ignored, so a caller may repeat some.
    """

    def __init__(
        self, snapshot: Part | None = None, revision: int = 0, *, library: Library | None = None
    ) -> None:
        self.revision = revision
        self._snapshot = snapshot
        self._library = library
        self._deltas: list[_Delta] = []
        self._open: dict[int, int] = {}
        """The current versions that are in deltas, by subscription number."""
        self._ended: dict[int, int] = {}
        """The ended versions that are in deltas, and the revisions that ended them."""
        self._closed = _ClosingLog()
        self._closings = Closings()

    @property
    def index(self) -> Index:
        """The current index."""
        snapshot = [self._snapshot] if self._snapshot is not None else []
        return Index((*snapshot, *(delta.part for delta in self._deltas)), self._closings)

    @property
    def delta_size(self) -> int:
        """The number of versions in delta parts, which a new snapshot would absorb."""
        return sum(delta.part.size for delta in self._deltas)

    def apply(self, changes: Iterable[Change]) -> Applied:
        """Apply changes in order of revision; the cost is proportional to their number, plus folding."""
        pending: list[Change] = []
        pending_ids: set[int] = set()
        closed: dict[int, int] = {}
        new = [change for change in changes if change.revision > self.revision]
        for change, in_snapshot in zip(new, self._open_in_snapshot(new), strict=True):
            if change.revision <= self.revision:
                continue
            self.revision = change.revision
            version = self._open.pop(change.number, None)
            if version is None:
                version = in_snapshot
            else:
                self._ended[version] = change.revision
                if version in pending_ids:
                    version = None
            if version is not None and version not in closed:
                closed[version] = change.revision
            if change.filter is not None:
                self._open[change.number] = change.revision
                pending.append(change)
                pending_ids.add(change.revision)
        self._closed.add(closed)
        return self._absorb(pending, bool(closed))

    def _open_in_snapshot(self, changes: Sequence[Change]) -> list[int | None]:
        """For each change, the open version of its subscription in the snapshot, which the change would end;
        else None."""
        if self._snapshot is None:
            return [None] * len(changes)
        numbers = np.fromiter((change.number for change in changes), np.uint32, len(changes))
        versions = self._snapshot.open_versions(numbers)
        ended = (versions < 0) | self._closed.has(versions)
        return [
            None if end else version for version, end in zip(versions.tolist(), ended.tolist(), strict=True)
        ]

    def _absorb(self, pending: list[Change], closings_changed: bool) -> Applied:
        """Add a delta of new versions; fold it with others if there would be too many."""
        groups = [pending] if pending else []
        dropped: list[_Delta] = []
        if pending and len(self._deltas) >= DELTAS_MAX:
            groups, dropped = self._fold(pending)
        written = [_Delta(self._build(group), group) for group in groups]
        removed = {id(delta) for delta in dropped}
        self._deltas = [delta for delta in self._deltas if id(delta) not in removed] + written
        in_dropped = (version.revision for delta in dropped for version in delta.versions)
        folded = np.array(sorted(in_dropped), np.int64)
        if self._closed.has(folded).any():  # the new part contains the ends of these versions
            self._closed.keep(~np.isin(self._closed.arrays[0], folded))
            closings_changed = True
        return self._applied(written, dropped, closings_changed)

    def _fold(self, pending: list[Change]) -> tuple[list[list[Change]], list[_Delta]]:
        """Choose the versions to fold: the smallest deltas, until the next one is much larger than their
        total.

        A version is therefore folded again only after its delta has grown by half: a logarithmic number of
        times.
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
        """Replace the snapshot by a new one, built from the registry's versions known at `revision`.

        Changes after `revision` are kept, in one delta and in closings. Raises ValueError if `revision` is
        newer than the index.
        """
        if revision > self.revision:
            raise ValueError(f"the snapshot has revision {revision}; this index is only at {self.revision}")
        dropped = self._deltas
        versions = [version for delta in dropped for version in delta.versions]
        closed = {version: end for version, end in self._ended.items() if version <= revision < end}
        later = self._closed.arrays[
            :, (self._closed.arrays[1] > revision) & (self._closed.arrays[0] <= revision)
        ]
        closed |= dict(later.T.tolist())
        kept = [version for version in versions if version.revision > revision]
        removed = [self._snapshot] if self._snapshot is not None and self._snapshot is not snapshot else []
        self._snapshot = snapshot
        self._open = {number: version for number, version in self._open.items() if version > revision}
        self._ended = {version: end for version, end in self._ended.items() if version > revision}
        self._closed = _ClosingLog()
        self._closed.add(closed)
        self._deltas = [_Delta(self._build(kept), kept)] if kept else []
        applied = self._applied(self._deltas, dropped, True)
        return Applied(applied.index, applied.written, (*removed, *applied.dropped), True)

    def _build(self, versions: list[Change]) -> Part:
        known = (
            replace(version, closed_by=self._ended[version.revision])
            if version.revision in self._ended
            else version
            for version in versions
        )
        return build_part([entry_of(version, self._library) for version in known], self._library)

    def _applied(self, written: list[_Delta], dropped: list[_Delta], closings_changed: bool) -> Applied:
        if closings_changed:
            self._closings = self._closed.closings()
        return Applied(
            self.index,
            tuple(delta.part for delta in written),
            tuple(delta.part for delta in dropped),
            closings_changed,
        )
