"""What a service owes: written down from calls and answers, worked out with the naive evaluator.

Nothing here looks into the service's files. An event is known by a number of its own (``data.n``), a
subscription's version by its text and the ``revision`` that the answer to its PUT gave: it counts for records
whose answers gave a ``stamp`` from that on, until the next one does.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from fieldfare.filters import compile_filter
from fieldfare.model import Position

Event = dict[str, Any]
Key = tuple[str, str]
"""The space and the id of a subscription."""


class Fault(AssertionError):
    """A promise that was broken.

    Attributes
    ----------
    kind
        ``lost``, ``doubled``, ``wrong`` (another event, place or order), ``foreign`` (of another space), or
        ``stuck``: what should have come to pass has not.
    """

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


def hold(kept: bool, kind: str, what: str) -> None:
    """Complain when a promise is not kept."""
    if not kept:
        raise Fault(kind, what)


NUMBER = "n"
"""The member of an event's data by which the ledger knows it; no filter asks for it."""


@dataclass
class Promise:
    """A filter of a subscription, and the stamp from which on it counts.

    The naive evaluator works out each data once: of ten thousand events in a request most are alike.
    """

    text: str
    revision: int
    _matches: Callable[[Event], bool]
    _known: dict[tuple[Any, ...], bool] = field(default_factory=dict)

    def matches(self, event: Event) -> bool:
        data = tuple((name, type(value), value) for name, value in event["data"].items() if name != NUMBER)
        found = self._known.get(data)
        if found is None:
            found = self._known[data] = self._matches(event)
        return found


@dataclass
class Ledger:
    """All that was sent, answered and received; used by many threads.

    Attributes
    ----------
    events
        Every event that was sent, by its number, with its space.
    records
        The acknowledged records, by their offsets, and their stamps.
    watched, waiting
        All that a subscription is owed, and what of it has not been confirmed, by the offsets of records.
    refusals
        How often an answer said that it cannot be done now, by status and kind.
    """

    events: dict[int, tuple[str, Event]] = field(default_factory=dict)
    records: dict[int, tuple[str, list[Event], int]] = field(default_factory=dict)
    promises: dict[Key, list[Promise]] = field(default_factory=dict)
    sizes_bytes: dict[int, int] = field(default_factory=dict)
    watched: dict[Key, dict[Position, int]] = field(default_factory=dict)
    waiting: dict[Key, dict[int, set[Position]]] = field(default_factory=dict)
    refusals: Counter[tuple[int, str]] = field(default_factory=Counter)
    acknowledged: int = 0
    replays: int = 0
    """How many subscriptions that began in the past have had all that they were owed."""
    _early: dict[tuple[Key, int], set[Position]] = field(default_factory=dict)
    _offsets: list[int] = field(default_factory=list)
    """Of the acknowledged records, in their order: what lies behind one is asked before each request."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def sending(self, space: str, events: Iterable[Event]) -> None:
        """These may be delivered from now on."""
        self.events.update((event["data"][NUMBER], (space, event)) for event in events)

    def acknowledge(self, space: str, offset: int, stamp: int, events: list[Event], size_bytes: int) -> None:
        """A record was acknowledged: whoever matches it is owed it."""
        with self.lock:
            hold(
                offset not in self.records,
                "wrong",
                f"two requests were told that they became record {offset}",
            )
            self.records[offset] = space, events, stamp
            self.sizes_bytes[offset] = size_bytes
            insort(self._offsets, offset)
            self.acknowledged += len(events)
            for key, owed in self.watched.items():
                if key[0] == space:
                    new = self._owed(key, offset, stamp, events)
                    owed.update(new)
                    if waiting := new.keys() - self._early.pop((key, offset), set()):
                        self.waiting[key][offset] = waiting

    def confirm(self, key: Key, positions: Iterable[Position]) -> None:
        """A subscription's acks were answered."""
        with self.lock:
            for position in positions:
                if key not in self.waiting:
                    continue
                if position.offset in self.records:
                    waiting = self.waiting[key].get(position.offset, set())
                    waiting.discard(position)
                    if not waiting:
                        self.waiting[key].pop(position.offset, None)
                else:  # The publisher has not had its answer yet.
                    self._early.setdefault((key, position.offset), set()).add(position)

    def behind_bytes(self, keys: Iterable[Key]) -> int:
        """The bytes of all records from the oldest on that some of these subscriptions wait for."""
        with self.lock:
            oldest = min((min(self.waiting[key]) for key in keys if self.waiting.get(key)), default=1 << 62)
            behind = takewhile(lambda offset: offset >= oldest, reversed(self._offsets))
            return sum(self.sizes_bytes[offset] for offset in behind)

    def promise(self, key: Key, text: str, revision: int) -> None:
        """A filter stands from a stamp on, until the next one of the same subscription does."""
        with self.lock:
            promises = self.promises.setdefault(key, [])
            if not promises or promises[-1].revision != revision:
                assert not promises or promises[-1].revision < revision
                promises.append(Promise(text, revision, compile_filter(text).matches))

    def watch(self, key: Key) -> None:
        """Keep account of what is owed to a subscription while events come; its filter must not change."""
        self.watched[key], self.waiting[key] = {}, {}

    def owed(self, key: Key) -> dict[Position, int]:
        """The positions, with the numbers of their events, that a subscription must have been given."""
        with self.lock:
            if key in self.watched:
                return dict(self.watched[key])
            found: dict[Position, int] = {}
            for offset, (space, events, stamp) in self.records.items():
                if space == key[0]:
                    found.update(self._owed(key, offset, stamp, events))
            return found

    def place_before(self, size_bytes: int) -> int | None:
        """The record that has about so many bytes of acknowledged ones behind it; None before there are."""
        with self.lock:
            for offset in reversed(self._offsets):
                size_bytes -= self.sizes_bytes[offset]
                if size_bytes <= 0:
                    return offset
        return None

    def owed_since(self, space: str, start: int, text: str) -> dict[Position, int]:
        """What a subscription is owed by now that begins at a record, whenever it was made."""
        matches = Promise(text, 0, compile_filter(text).matches).matches
        with self.lock:
            records = [(at, record) for at, record in self.records.items() if at >= start]
        return {
            Position(0, at, index): event["data"][NUMBER]
            for at, (owner, events, _) in records
            if owner == space
            for index, event in enumerate(events)
            if matches(event)
        }

    def matches(self, key: Key, event: Event) -> bool:
        """Whether the filter of a subscription that has had only one matches an event."""
        (only,) = self.promises[key]
        return only.matches(event)

    def _owed(self, key: Key, offset: int, stamp: int, events: list[Event]) -> dict[Position, int]:
        standing = [each for each in self.promises.get(key, []) if each.revision <= stamp]
        if not standing:
            return {}
        matches = standing[-1].matches
        return {
            Position(0, offset, index): event["data"][NUMBER]
            for index, event in enumerate(events)
            if matches(event)
        }

    def standing(self, key: Key, position: Position) -> str:
        """Return an event and the filters of a subscription that match it or stand at its stamp."""
        _, events, stamp = self.records[position.offset]
        event, promises = events[position.index], self.promises.get(key, [])
        standing = max((each.revision for each in promises if each.revision <= stamp), default=0)
        filters = [
            f"{each.revision} ({'matches' if matches else 'does not match'}): {each.text}"
            for each in promises
            if (matches := each.matches(event)) or each.revision == standing
        ]
        of_record = f"{position}, stamp {stamp}, {event['data']}; the filter of {standing} stands; "
        return of_record + "; ".join(filters[:20])

    def check_order(self) -> None:
        """Every space's events stand in the log in the order in which its one publisher numbered them."""
        newest: dict[str, int] = {}
        for offset, (space, events, _) in sorted(self.records.items()):
            numbers = [newest.get(space, -1), *(event["data"][NUMBER] for event in events)]
            hold(numbers == sorted(numbers), "wrong", f"{space}: record {offset} stands behind a later one")
            newest[space] = numbers[-1]

    def forget_from(self, end: int) -> None:
        """Somebody put back a log that ends there: what came later is gone, by no fault of the service."""
        with self.lock:
            for offset in [offset for offset in self.records if offset >= end]:
                for event in self.records.pop(offset)[1]:
                    del self.events[event["data"][NUMBER]]
            for key, owed in self.watched.items():
                self.watched[key] = {at: n for at, n in owed.items() if at.offset < end}
                self.waiting[key] = {at: left for at, left in self.waiting[key].items() if at < end}
            self.sizes_bytes = {at: size for at, size in self.sizes_bytes.items() if at < end}
            del self._offsets[bisect_left(self._offsets, end) :]
