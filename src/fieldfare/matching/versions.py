"""The versions of subscriptions in a part, and the records for which each is valid.

A version is valid for records whose stamps lie from the revision that put its subscription up to the revision
that replaced or removed it. Parts are immutable: versions that end later are recorded as *closings*. Validity
is checked here only, in the same way for every library (see ``library``).

A change to an index of a million subscriptions adds one closing to thousands, and looking all of them up in
the part would take longer than matching an event. Earlier results are therefore kept, and only new closings
looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldfare.matching.compiled import compiled
from fieldfare.matching.files import open_arrays, read_only, save_arrays
from fieldfare.matching.grouping import run_slots
from fieldfare.model import OPEN_END

if TYPE_CHECKING:
    from fieldfare.filters import NormalForm


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of a subscription, valid for stamps in [valid_from, valid_to).

    `compiled` is the result of the library's `compile`. `destination` is the number under which its matches
    are reported; None for `number`.
    """

    version: int
    number: int
    valid_from: int
    valid_to: int
    compiled: NormalForm | bytes
    text: str
    dialect: str
    destination: int | None = None


class Versions(NamedTuple):
    """S subscription versions, ordered by version; `by_number` sorts them by subscription number."""

    version: NDArray[np.int64]
    number: NDArray[np.uint32]
    valid_from: NDArray[np.int64]
    valid_to: NDArray[np.int64]
    by_number: NDArray[np.int32]
    sorted_number: NDArray[np.uint32]


class VersionColumns:
    """A builder of `Versions`: `add` versions in batches, in any order, then `finish`. Stores arrays only."""

    def __init__(self) -> None:
        self._columns: list[tuple[NDArray[Any], ...]] = [columns_of([], [], [], [])]

    def add(self, entries: Sequence[IndexEntry]) -> None:
        """Add versions."""
        self._columns.append(
            columns_of(
                [entry.version for entry in entries],
                [entry.number for entry in entries],
                [entry.valid_from for entry in entries],
                [entry.valid_to for entry in entries],
            )
        )

    def finish(self) -> tuple[Versions, NDArray[np.int64]]:
        """Return the versions in order, and the number as which each was added."""
        return in_order(*map(np.concatenate, zip(*self._columns, strict=True)))


def columns_of(
    version: ArrayLike, number: ArrayLike, valid_from: ArrayLike, valid_to: ArrayLike
) -> tuple[NDArray[Any], ...]:
    """Convert to the first four columns of `Versions`."""
    return (
        np.asarray(version, np.int64),
        np.asarray(number, np.uint32),
        np.asarray(valid_from, np.int64),
        np.asarray(valid_to, np.int64),
    )


def in_order(
    version: NDArray[np.int64],
    number: NDArray[np.uint32],
    valid_from: NDArray[np.int64],
    valid_to: NDArray[np.int64],
) -> tuple[Versions, NDArray[np.int64]]:
    """Sort versions; return them and each one's index in the input. Raise ValueError for duplicates."""
    order = np.argsort(version, kind="stable")
    if not (np.diff(version[order]) > 0).all():
        raise ValueError("a version comes twice in versions")
    ordered = version[order], number[order], valid_from[order], valid_to[order]
    by_number = np.argsort(ordered[1], kind="stable").astype(np.int32)
    columns = (*ordered, by_number, ordered[1][by_number])
    return Versions(*(read_only(column) for column in columns)), order


def valid_within(versions: Versions) -> tuple[int, int]:
    """Return [first, last) such that every version is valid for all stamps in it, so no version need be
    checked."""
    if not len(versions.version):
        return 0, 0
    return int(versions.valid_from.max()), int(versions.valid_to.min())


def open_versions(versions: Versions, numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return each subscription's version that was open when the part was built; -1 for none."""
    if not len(versions.version):
        return np.full(len(numbers), -1, np.int64)
    # Only the last version of a subscription can be open.
    last = np.maximum(np.searchsorted(versions.sorted_number, numbers, side="right") - 1, 0)
    place = versions.by_number[last]
    is_open = versions.number[place] == numbers
    is_open &= versions.valid_to[place] == OPEN_END
    return np.where(is_open, versions.version[place], -1)


@dataclass(frozen=True, slots=True, eq=False)
class Closings:
    """Versions replaced or removed after their part was built, and the stamp from which each is invalid.

    versions is int64[k], ascending; valid_to is int64[k].
    """

    versions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    valid_to: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.versions)

    def save(self, path: str | FilePath) -> int:
        """Write the closings to a file atomically; return its size in bytes."""
        return save_arrays(path, "closings", {"versions": self.versions, "valid_to": self.valid_to}, {})

    @classmethod
    def open(cls, path: str | FilePath, *, verify: bool = True) -> Self:
        """Map a file written by `save`. Raise IndexFileError if it is corrupt."""
        _, arrays = open_arrays(path, "closings", verify=verify)
        return cls(arrays["versions"], arrays["valid_to"])


class Overlay(NamedTuple):
    """The subscriptions of a part that were closed after it was built."""

    closed: NDArray[np.uint8]  # one bit per subscription; empty when none is closed
    subscription: NDArray[np.int32]  # sorted
    valid_to: NDArray[np.int64]


NO_OVERLAY = Overlay(np.zeros(0, np.uint8), np.zeros(0, np.int32), np.zeros(0, np.int64))


class Closed(NamedTuple):
    """Closings that may concern a part, ascending by version, and their overlay of it."""

    versions: NDArray[np.int64]
    valid_to: NDArray[np.int64]
    overlay: Overlay


NOTHING_CLOSED = Closed(np.zeros(0, np.int64), np.zeros(0, np.int64), NO_OVERLAY)


def closed_of(
    version: NDArray[np.int64], versions: NDArray[np.int64], valid_to: NDArray[np.int64], before: Closed
) -> Closed:
    """Compute the closings of a part.

    Parameters
    ----------
    version : int64[S]
        The versions in the part, ascending, at least one.
    versions : int64[k]
        The ended versions, ascending.
    valid_to : int64[k]
        The stamp from which each ended version is invalid.
    before
        The result for earlier closings, which is reused as far as possible.
    """
    start, end = np.searchsorted(versions, [version[0], version[-1] + 1]).tolist()
    mine, ends = versions[start:end], valid_to[start:end]
    added = np.empty(len(mine), np.int64)
    count = find_added(before.versions, before.valid_to, mine, ends, added)
    if count < 0:  # closings were removed: their versions were folded into another part
        before, added, count = NOTHING_CLOSED, np.arange(len(mine)), len(mine)
    place, found = _look_up(version, mine, added[:count])
    if not len(place):
        return Closed(mine, ends, before.overlay)
    known = before.overlay
    closed = known.closed.copy() if len(known.closed) else np.zeros((len(version) + 7) // 8, np.uint8)
    np.bitwise_or.at(closed, place >> 3, np.left_shift(1, place & 7).astype(np.uint8))
    at = np.searchsorted(known.subscription, place)
    overlay = Overlay(
        closed, np.insert(known.subscription, at, place), np.insert(known.valid_to, at, ends[found])
    )
    return Closed(mine, ends, overlay)


def _look_up(
    version: NDArray[np.int64], closed: NDArray[np.int64], which: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the places in the part, and the indices, of those closings whose version the part contains."""
    place = np.searchsorted(version, closed[which])
    here = version[place] == closed[which]
    return place[here].astype(np.int32), which[here]


@compiled
def find_added(old_versions: Any, old_ends: Any, versions: Any, ends: Any, added: Any) -> Any:
    """Write the indices of new closings; return their number, or -1 if an old one was removed or changed."""
    count, i = 0, 0
    for k in range(len(versions)):
        if i < len(old_versions) and old_versions[i] == versions[k]:
            if old_ends[i] != ends[k]:
                return -1
            i += 1
        else:
            added[count] = k
            count += 1
    return count if i == len(old_versions) else -1


@compiled
def keep_valid(subscriptions: Any, overlay: Any, stamps: Any, pairs: Any) -> Any:
    """Keep the matches whose version is valid for the event; return the number of slots they take.

    A run stays a run (see ``grouping``): its kept events are written before any that is still to be read.
    """
    lowest, highest = stamps.min(), stamps.max()
    events = pairs.reshape(-1).view(np.uint16)
    kept, i = 0, 0
    while i < len(pairs):
        event: Any = np.int64(pairs[i, 0])
        signed = pairs[i, 1]
        subscription = signed if signed >= 0 else ~signed
        first, last = _valid_stamps(subscriptions, overlay, subscription)
        slots = 1 if event >= 0 else 1 + run_slots(-event)
        if event >= 0:
            counts = first <= stamps[event] < last
        else:
            counts = True
            if lowest < first or highest >= last:
                event = -_keep_of_run(events, 4 * i + 4, 4 * kept + 4, -event, stamps, first, last)
                counts = event < 0
            elif kept != i:
                for j in range(1, slots):
                    pairs[kept + j] = pairs[i + j]
        if counts:
            pairs[kept, 0] = event
            pairs[kept, 1] = signed
            kept += 1 if event >= 0 else 1 + run_slots(-event)
        i += slots
    return kept


@compiled
def _valid_stamps(subscriptions: Any, overlay: Any, subscription: Any) -> Any:
    """Return [first, last): the stamps for which a version is valid."""
    first, last = subscriptions.valid_from[subscription], subscriptions.valid_to[subscription]
    if len(overlay.closed) and overlay.closed[subscription >> 3] >> (subscription & 7) & 1:
        place = np.searchsorted(overlay.subscription, subscription)
        last = min(last, overlay.valid_to[place])
    return first, last


@compiled
def _keep_of_run(events: Any, source: int, target: int, run: int, stamps: Any, first: int, last: int) -> Any:
    """Copy the events of a run for which a version is valid; return how many."""
    kept = 0
    for j in range(run):
        event = events[source + j]
        events[target + kept] = event
        kept += first <= stamps[event] < last
    return kept
