"""Which versions of subscriptions a part holds, and for which records each of them counts.

A version is valid from the revision that put its subscription to the revision that replaced or removed it,
for records whose stamps lie between. What ended it after its part was built are *closings*: a part is never
changed. Both are looked at here and nowhere else, the same for every library (see ``library``).

A change to an index of a million subscriptions adds one closing to thousands, and looking all of these up
in the part takes longer than matching an event. So what is known is kept, and only what is new looked up.
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

    `compiled` is what the library's `compile` made of the filter.
    """

    version: int
    number: int
    valid_from: int
    valid_to: int
    compiled: NormalForm | bytes
    text: str
    dialect: str


class Versions(NamedTuple):
    """S subscription versions, ordered by version; `by_number` lists them by number."""

    version: NDArray[np.int64]
    number: NDArray[np.uint32]
    valid_from: NDArray[np.int64]
    valid_to: NDArray[np.int64]
    by_number: NDArray[np.int32]
    sorted_number: NDArray[np.uint32]


class VersionColumns:
    """Takes in versions, some at a time, in any order; what it keeps of them is arrays."""

    def __init__(self) -> None:
        self._columns: list[tuple[NDArray[Any], ...]] = [columns_of([], [], [], [])]

    def add(self, entries: Sequence[IndexEntry]) -> None:
        """Take in versions."""
        self._columns.append(
            columns_of(
                [entry.version for entry in entries],
                [entry.number for entry in entries],
                [entry.valid_from for entry in entries],
                [entry.valid_to for entry in entries],
            )
        )

    def finish(self) -> tuple[Versions, NDArray[np.int64]]:
        """All that was taken in, by version, and as what number each of them came."""
        return in_order(*map(np.concatenate, zip(*self._columns, strict=True)))


def columns_of(
    version: ArrayLike, number: ArrayLike, valid_from: ArrayLike, valid_to: ArrayLike
) -> tuple[NDArray[Any], ...]:
    """The first four columns of `Versions`."""
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
    """Versions, ascending, and the place of each among those given; ValueError if one comes twice."""
    order = np.argsort(version, kind="stable")
    if not (np.diff(version[order]) > 0).all():
        raise ValueError("a version comes twice in versions")
    ordered = version[order], number[order], valid_from[order], valid_to[order]
    by_number = np.argsort(ordered[1], kind="stable").astype(np.int32)
    columns = (*ordered, by_number, ordered[1][by_number])
    return Versions(*(read_only(column) for column in columns)), order


def valid_within(versions: Versions) -> tuple[int, int]:
    """All versions are valid for stamps in [first, second): no need to look at each."""
    if not len(versions.version):
        return 0, 0
    return int(versions.valid_from.max()), int(versions.valid_to.min())


def open_versions(versions: Versions, numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """For each subscription the version that nothing had ended when its part was built; -1 for none."""
    if not len(versions.version):
        return np.full(len(numbers), -1, np.int64)
    # Of several versions of a subscription only the last can be open.
    last = np.maximum(np.searchsorted(versions.sorted_number, numbers, side="right") - 1, 0)
    place = versions.by_number[last]
    is_open = versions.number[place] == numbers
    is_open &= versions.valid_to[place] == OPEN_END
    return np.where(is_open, versions.version[place], -1)


@dataclass(frozen=True, slots=True, eq=False)
class Closings:
    """Versions that were replaced or removed after their part was built, and from which stamp on.

    versions is int64[k], ascending; valid_to int64[k].
    """

    versions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    valid_to: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.versions)

    def save(self, path: str | FilePath) -> int:
        """Write to a file, all or nothing; return its size in bytes."""
        return save_arrays(path, "closings", {"versions": self.versions, "valid_to": self.valid_to}, {})

    @classmethod
    def open(cls, path: str | FilePath, *, verify: bool = True) -> Self:
        """Map a file that `save` wrote; IndexFileError if it is broken."""
        _, arrays = open_arrays(path, "closings", verify=verify)
        return cls(arrays["versions"], arrays["valid_to"])


class Overlay(NamedTuple):
    """Subscriptions of a part that were closed after it was built."""

    closed: NDArray[np.uint8]  # a bit a subscription; empty when none is closed
    subscription: NDArray[np.int32]  # sorted
    valid_to: NDArray[np.int64]


NO_OVERLAY = Overlay(np.zeros(0, np.uint8), np.zeros(0, np.int32), np.zeros(0, np.int64))


class Closed(NamedTuple):
    """Closings that may concern a part, ascending by version, and what they end of it."""

    versions: NDArray[np.int64]
    valid_to: NDArray[np.int64]
    overlay: Overlay


NOTHING_CLOSED = Closed(np.zeros(0, np.int64), np.zeros(0, np.int64), NO_OVERLAY)


def closed_of(
    version: NDArray[np.int64], versions: NDArray[np.int64], valid_to: NDArray[np.int64], before: Closed
) -> Closed:
    """What closings end of a part.

    Parameters
    ----------
    version : int64[S]
        Ascending, at least one: the versions that the part holds.
    versions, valid_to : int64[k], the versions that ended, ascending, and the stamp from which on each is
        no longer valid
    before
        The outcome for earlier closings, which may be like these.
    """
    start, end = np.searchsorted(versions, [version[0], version[-1] + 1]).tolist()
    mine, ends = versions[start:end], valid_to[start:end]
    added = np.empty(len(mine), np.int64)
    count = find_added(before.versions, before.valid_to, mine, ends, added)
    if count < 0:  # some are there no more: they were folded into another part
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
    """Of some closings those whose version the part holds: the place there, and which closing."""
    place = np.searchsorted(version, closed[which])
    here = version[place] == closed[which]
    return place[here].astype(np.int32), which[here]


@compiled
def find_added(old_versions: Any, old_ends: Any, versions: Any, ends: Any, added: Any) -> Any:
    """Write which closings are not among the old ones; return how many, or -1 if an old one is gone."""
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
    """Keep the matches whose subscription version counts for the event; return how many slots they take.

    A run stays a run (see ``grouping``): what is kept of it is written before what is still to be read.
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
    """A version is valid for stamps in [first, last)."""
    first, last = subscriptions.valid_from[subscription], subscriptions.valid_to[subscription]
    if len(overlay.closed) and overlay.closed[subscription >> 3] >> (subscription & 7) & 1:
        place = np.searchsorted(overlay.subscription, subscription)
        last = min(last, overlay.valid_to[place])
    return first, last


@compiled
def _keep_of_run(events: Any, source: int, target: int, run: int, stamps: Any, first: int, last: int) -> Any:
    """Copy the events of a run that a version counts for; return how many."""
    kept = 0
    for j in range(run):
        event = events[source + j]
        events[target + kept] = event
        kept += first <= stamps[event] < last
    return kept
