"""Which events of a block go to which brokers, and in which entries they are sent.

An entry may hold events of several successive records, if all of them have the same stamp, go to the same
brokers and count for the same revisions there. So a site that publishes one event per request costs a link no
entry per event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.arrow_events.stream import is_arrow, read_events, write_events
from fieldfare.gateway.federation.origins import Origin
from fieldfare.model import INDEX_MAX, RECORD_EVENTS_MAX
from fieldfare.storage.event_log import Record

ENTRY_BYTES = 1 << 20
"""Bytes of events after which an entry ends; a larger event is sent alone."""

MERGED_BYTES = 128 << 10
"""Bytes of events up to which an entry takes those of further records."""

_INDEX_BITS = INDEX_MAX.bit_length()
_WORD_BITS = 64

Reached = tuple[tuple[str, int], ...]
"""Destinations of events, each with its revision for which they count."""

Lists = list[tuple[tuple[str, ...], NDArray[np.int64]]]
"""The events of a record by their destinations: indexes, ascending."""


def destination_lists(
    names: Sequence[str],
    bounds: NDArray[np.int64],
    offsets: NDArray[np.int64],
    indexes: NDArray[np.int32],
    start: int,
) -> dict[int, Lists]:
    """Return the events with matches by record, and in a record by destination list.

    Parameters
    ----------
    names
        The brokers.
    bounds, offsets, indexes
        The events that each broker wants: see `MatchBlock.matches_of_each`.
    start
        Records before this offset are left out.
    """
    keys = (offsets - start << _INDEX_BITS) | indexes
    events, places = np.unique(keys, return_inverse=True)
    words = np.zeros((events.size, -(-len(names) // _WORD_BITS)), np.uint64)
    for broker in np.flatnonzero(np.diff(bounds)).tolist():
        word, bit = divmod(broker, _WORD_BITS)
        words[places[bounds[broker] : bounds[broker + 1]], word] |= np.uint64(1 << bit)
    first = int(np.searchsorted(events, 0))
    events, words = events[first:], words[first:]
    if not events.size:
        return {}
    kinds, kind_of = np.unique(words, axis=0, return_inverse=True)
    chosen = [_names_of(kind, names) for kind in kinds]
    records = events >> _INDEX_BITS
    order = np.lexsort((kind_of.reshape(-1), records))
    records, kind_of = records[order], kind_of.reshape(-1)[order]
    sorted_indexes = events[order] & INDEX_MAX
    is_first = np.ones(order.size, bool)
    is_first[1:] = (records[1:] != records[:-1]) | (kind_of[1:] != kind_of[:-1])
    cuts = np.flatnonzero(is_first)
    found: dict[int, Lists] = {}
    for record, kind, some in zip(
        (records[cuts] + start).tolist(),
        kind_of[cuts].tolist(),
        np.split(sorted_indexes, cuts[1:]),
        strict=True,
    ):
        found.setdefault(record, []).append((chosen[kind], some))
    for lists in found.values():
        lists.sort(key=_first_index)
    return found


def _first_index(of_list: tuple[tuple[str, ...], NDArray[np.int64]]) -> int:
    return int(of_list[1][0])


def _names_of(words: NDArray[np.uint64], names: Sequence[str]) -> tuple[str, ...]:
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return tuple(names[place] for place in np.flatnonzero(bits).tolist())


@dataclass(slots=True)
class Group:
    """Events of one or more records that become one entry.

    Attributes
    ----------
    first
        The first of the records.
    """

    first: Record
    reached: Reached
    count: int = 0
    size_bytes: int = 0
    pieces: list[bytes] = field(default_factory=list)

    @property
    def payload(self) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


class Merger:
    """Merges the chosen events of successive records into groups.

    At each destination, events of different records stay in order: a group is extended only if no later group
    of its space has a destination in common with it.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, Reached], Group] = {}
        self.size_bytes = 0
        """Bytes of the groups that are not complete."""

    def add(self, record: Record, lists: Mapping[Reached, NDArray[np.int64]]) -> Iterator[Group]:
        """Add the events of a record by their destinations; yield groups that are complete, in order."""
        if is_arrow(record.payload):
            yield from self.flush()
            for reached, indexes in lists.items():
                yield from _arrow_groups(record, reached, indexes.tolist())
            return
        lines: list[bytes] = []
        for reached, indexes in lists.items():
            if indexes.size == record.count and record.payload.endswith(b"\n"):
                piece = record.payload
            else:
                lines = lines or record.payload.split(b"\n")
                piece = b"\n".join([*map(lines.__getitem__, indexes.tolist()), b""])
            if len(piece) > MERGED_BYTES:
                yield from self.flush()
                yield from _line_groups(record, reached, piece, indexes.size)
                continue
            group = self._open.get((record.space, reached))
            if group is not None and self._must_end(group, record, piece, indexes.size):
                yield from self.flush()
                group = None
            if group is None:
                group = self._open[record.space, reached] = Group(record, reached)
            group.count += indexes.size
            group.size_bytes += len(piece)
            group.pieces.append(piece)
            self.size_bytes += len(piece)

    def _must_end(self, group: Group, record: Record, piece: bytes, count: int) -> bool:
        if group.size_bytes + len(piece) > MERGED_BYTES or group.count + count > RECORD_EVENTS_MAX:
            return True
        if group.first.stamp != record.stamp or _source(group.first) != _source(record):
            return True
        if len(self._open) == 1:
            return False
        names = {name for name, _ in group.reached}
        groups = list(self._open.values())
        return any(
            later.first.space == record.space
            and later.first.offset < record.offset
            and not names.isdisjoint(name for name, _ in later.reached)
            for later in groups[groups.index(group) + 1 :]
        )

    def flush(self) -> list[Group]:
        """Return the groups so far, in order; further events begin new ones."""
        groups = list(self._open.values())
        self._open.clear()
        self.size_bytes = 0
        return groups


def _source(record: Record) -> tuple[str, str] | None:
    """Return where a record was published and over whom it came."""
    origin = None if record.origin is None else Origin.parsed(record.origin)
    return None if origin is None else (origin.broker, origin.via)


def _line_groups(record: Record, reached: Reached, piece: bytes, count: int) -> Iterator[Group]:
    """Yield JSON lines in groups of about `ENTRY_BYTES`."""
    if len(piece) <= ENTRY_BYTES:
        yield Group(record, reached, count, len(piece), [piece])
        return
    start = 0
    while start < len(piece):
        end = piece.rfind(b"\n", start, start + ENTRY_BYTES) + 1 or piece.index(b"\n", start) + 1
        some = piece[start:end]
        yield Group(record, reached, some.count(b"\n"), len(some), [some])
        start = end


def _arrow_groups(record: Record, reached: Reached, indexes: Sequence[int]) -> Iterator[Group]:
    """Yield rows of a table in groups of about `ENTRY_BYTES`."""
    events = read_events(record.payload)
    step = max(1, len(indexes) * ENTRY_BYTES // max(1, len(record.payload)))
    for first in range(0, len(indexes), step):
        some = indexes[first : first + step]
        payload = bytes(write_events(events.take(pa.array(some, pa.int64()))))
        yield Group(record, reached, len(some), len(payload), [payload])
