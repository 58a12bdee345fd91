"""All of fieldfare's promises in one small file, without its speed. Read this first.

    python examples/tiny_fieldfare.py

The service keeps one journal: a line for each publish call, change of a subscription, delivery and ack. A
line is synced to disk before the call returns, so nothing that was acknowledged is lost in a crash. Opening
the journal applies its lines again, in order: the state is a function of the journal.

Results are exact because of two numbers. Each change of a subscription gets the next *revision*. Each record
(the events of one publish call) carries a *stamp*: the revision at the moment it was stored. An event is
matched against the version of the filter that was current at its record's stamp, however late it is matched.

The real service does the same with an event log, a registry, an index of a million filters, and a match log
that Spark writes. The simulation (tests/simulation) compares it with this file.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fieldfare.filters import Filter, compile_filter
from fieldfare.model import Position

Event = Mapping[str, Any]
LOG_START = Position(0, 0, 0)


class Message(NamedTuple):
    """A delivered event: its position, the number of this attempt (from 1), and the event."""

    position: Position
    attempt: int
    event: Event


@dataclass(frozen=True)
class Record:
    """The events of one publish call, as they were stored."""

    space: str
    events: Sequence[Event]
    stamp: int


@dataclass
class Subscription:
    """A subscription and the state of its delivery.

    Attributes
    ----------
    space, id
        Its name, unique within its space.
    versions
        Its filters in order, each with its revision; None stands for the deletion.
    start
        The first position that it is matched from if that lies before its first revision, else None.
    order_by
        The attribute whose equal values are delivered one at a time, in order; None for no such order.
    max_attempts
        Deliveries after which an unacknowledged message becomes a dead letter; None for no limit.
    acked, dead
        The positions that are settled: acknowledged, and dead letters.
    cursor
        Everything before this position counts as settled.
    attempts
        How many times each position was delivered.
    leases
        Positions in flight, with the times at which their leases expire. Leases end in a crash.
    delayed
        Nacked positions, with the times before which they are not delivered again.
    """

    space: str
    id: str
    versions: list[tuple[int, str | None]]
    start: Position | None = None
    order_by: str | None = None
    max_attempts: int | None = None
    acked: set[Position] = field(default_factory=set)
    dead: set[Position] = field(default_factory=set)
    cursor: Position = LOG_START
    attempts: dict[Position, int] = field(default_factory=dict)
    leases: dict[Position, float] = field(default_factory=dict)
    delayed: dict[Position, float] = field(default_factory=dict)

    @property
    def is_deleted(self) -> bool:
        """Whether its newest version is its deletion."""
        return self.versions[-1][1] is None

    def is_settled(self, at: Position) -> bool:
        """Whether a message is never delivered again."""
        return at in self.acked or at in self.dead or at < self.cursor


@cache
def compiled(text: str) -> Filter:
    """Compile a filter; FilterError names the place of a mistake."""
    return compile_filter(text)


def matches(text: str, event: Event) -> bool:
    """Return whether an event matches a filter."""
    return bool(compiled(text).matches(event))


def matching_events(
    records: Iterable[tuple[Position, Record]],
    space: str,
    versions: Sequence[tuple[int, str | None]],
    start: Mapping[int, Position] | None = None,
    matches: Callable[[str, Event], bool] = matches,
) -> Iterator[tuple[Position, Event]]:
    """Yield the events that a subscription must get, from the definition: no index, no shortcut.

    Parameters
    ----------
    records, space
        All records, each with the position of its first event; the subscription's space.
    versions
        Its filters, each with its revision, in order; None for its deletion.
    start
        By partition, the first position to match from if the subscription asked for older events.
    """
    for first, record in records:
        if record.space != space:
            continue
        current = [text for revision, text in versions if revision <= record.stamp]
        for index, event in enumerate(record.events):
            at = Position(first.partition, first.offset, index)
            if current:
                text = current[-1]
            else:  # stored before the subscription was created
                replayed = start is not None and at >= start[at.partition]
                text = versions[0][1] if replayed else None
            if text is not None and matches(text, event):
                yield at, event


class TinyFieldfare:
    """The service: one process, one journal, one partition.

    Time is passed in as seconds, so that a test decides what time it is.

    Parameters
    ----------
    path
        The journal. It is created if it is missing; a line that a crash left incomplete is removed.
    """

    def __init__(self, path: Path) -> None:
        self.records: list[Record] = []
        self.revision = 0
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        self.producers: dict[tuple[str, str], dict[int, int]] = {}
        complete = 0
        content = path.read_bytes() if path.exists() else b""
        for line in content.splitlines(keepends=True):
            checksum, _, text = line.partition(b" ")
            if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
                break
            self._apply(json.loads(text))
            complete += len(line)
        if content[complete:].count(b"\n") > 1:
            raise ValueError(f"{path}: byte {complete} is corrupt, and complete lines follow it")
        self._journal = path.open("ab")
        self._journal.truncate(complete)
        os.fsync(self._journal.fileno())

    def publish(
        self, space: str, events: Sequence[Event], producer: str | None = None, sequence: int = 0
    ) -> list[Position]:
        """Store events; they are on disk when this returns. Returns their positions.

        A call that is repeated with its producer and sequence stores nothing and returns the first positions.
        """
        stored = self.producers.get((space, producer or ""), {}).get(sequence) if producer else None
        if stored is None:
            stored = len(self.records)
            self._write(
                {"do": "publish", "space": space, "events": events, "stamp": self.revision}
                | ({"producer": producer, "sequence": sequence} if producer else {})
            )
        return [Position(0, stored, index) for index in range(len(self.records[stored].events))]

    def subscribe(
        self,
        space: str,
        id: str,
        filter: str,
        start: Position | None = None,
        order_by: str | None = None,
        max_attempts: int | None = None,
    ) -> int:
        """Create a subscription or replace its filter. Returns the revision of the change.

        Events that are published after this returns meet the new filter; events that were acknowledged
        before it was called meet the old one.
        """
        compiled(filter)
        begin = None if start is None else str(start)
        self._write(
            {"do": "subscribe", "space": space, "id": id, "filter": filter, "start": begin}
            | {"order_by": order_by, "max_attempts": max_attempts}
        )
        return self.revision

    def unsubscribe(self, space: str, id: str) -> None:
        """Delete a subscription."""
        self._find(space, id)
        self._write({"do": "unsubscribe", "space": space, "id": id})

    def pull(
        self, space: str, id: str, limit: int, now_s: float, ack_deadline_s: float = 30.0
    ) -> list[Message]:
        """Deliver at most `limit` messages under leases of `ack_deadline_s` seconds each."""
        subscription = self._find(space, id)
        self._expire(subscription, now_s)
        messages: list[Message] = []
        blocked: set[str] = set()
        for at, event in self.owed(subscription):
            if len(messages) == limit:
                break
            key = repr(_value(event, subscription.order_by)) if subscription.order_by else None
            is_free = at not in subscription.leases and subscription.delayed.get(at, now_s) <= now_s
            if is_free and (key is None or key not in blocked):
                messages.append(Message(at, subscription.attempts.get(at, 0) + 1, event))
            if key is not None:
                blocked.add(key)  # later messages of this key wait until this one is settled
        if messages:
            self._change(subscription, "deliver", [message.position for message in messages])
            for message in messages:
                subscription.leases[message.position] = now_s + ack_deadline_s
        return messages

    def ack(self, space: str, id: str, positions: Iterable[Position]) -> None:
        """Acknowledge messages: they are never delivered again. Acknowledging twice is harmless."""
        self._change(self._find(space, id), "ack", positions)

    def nack(self, space: str, id: str, positions: Iterable[Position], now_s: float, delay_s: float) -> None:
        """Give messages back; they are delivered again after `delay_s`, up to the maximum of attempts."""
        subscription = self._find(space, id)
        for at in positions:
            if subscription.leases.pop(at, None) is not None:
                subscription.delayed[at] = now_s + delay_s
        self._bury(subscription)

    def terminate(self, space: str, id: str, positions: Iterable[Position]) -> None:
        """Make messages dead letters."""
        self._change(self._find(space, id), "bury", positions)

    def retry_dead_letters(self, space: str, id: str) -> None:
        """Deliver all dead letters of a subscription again, as if for the first time."""
        subscription = self._find(space, id)
        self._change(subscription, "revive", sorted(subscription.dead))

    def seek(self, space: str, id: str, position: Position) -> None:
        """Move a subscription's cursor: everything from this position on is delivered, settled or not."""
        self._change(self._find(space, id), "seek", [position])

    def owed(self, subscription: Subscription) -> Iterator[tuple[Position, Event]]:
        """Yield the messages that a subscription has yet to acknowledge, in order."""
        start = None if subscription.start is None else {0: subscription.start}
        records = ((Position(0, offset, 0), record) for offset, record in enumerate(self.records))
        for at, event in matching_events(records, subscription.space, subscription.versions, start):
            if not subscription.is_settled(at):
                yield at, event

    def _find(self, space: str, id: str) -> Subscription:
        subscription = self.subscriptions.get((space, id))
        if subscription is None or subscription.is_deleted:
            raise KeyError(f"there is no subscription {id!r} in space {space!r}")
        return subscription

    def _expire(self, subscription: Subscription, now_s: float) -> None:
        """Free the messages whose leases have expired."""
        for at in [at for at, until_s in subscription.leases.items() if until_s <= now_s]:
            del subscription.leases[at]
        self._bury(subscription)

    def _bury(self, subscription: Subscription) -> None:
        """Make dead letters of the messages that have no attempt left and are not in flight."""
        limit = subscription.max_attempts
        spent = [
            at
            for at, attempts in subscription.attempts.items()
            if limit is not None and attempts >= limit
            if at not in subscription.leases and not subscription.is_settled(at)
        ]
        if spent:
            self._change(subscription, "bury", spent)

    def _change(self, subscription: Subscription, verb: str, positions: Iterable[Position]) -> None:
        """Write a change of a subscription's delivery, and apply it."""
        entry = {"do": verb, "space": subscription.space, "id": subscription.id}
        self._write(entry | {"positions": [str(at) for at in positions]})

    def _write(self, entry: dict[str, Any]) -> None:
        """Append a line to the journal, sync it, and only then change the state."""
        text = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        self._journal.write(b"%08x %s" % (zlib.crc32(text), text))
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._apply(json.loads(text))

    def _apply(self, entry: dict[str, Any]) -> None:
        """Change the state by one entry: the only place where it changes, now and after a crash."""
        match entry["do"]:
            case "publish":
                if "producer" in entry:
                    sequences = self.producers.setdefault((entry["space"], entry["producer"]), {})
                    sequences[entry["sequence"]] = len(self.records)
                self.records.append(Record(entry["space"], entry["events"], entry["stamp"]))
            case "subscribe":
                self._apply_subscribe(entry)
            case "unsubscribe":
                self.revision += 1
                self.subscriptions[entry["space"], entry["id"]].versions.append((self.revision, None))
            case verb:
                subscription = self.subscriptions[entry["space"], entry["id"]]
                self._apply_delivery(subscription, verb, [Position.parse(at) for at in entry["positions"]])

    def _apply_subscribe(self, entry: dict[str, Any]) -> None:
        self.revision += 1
        name = entry["space"], entry["id"]
        subscription = self.subscriptions.get(name)
        if subscription is None or subscription.is_deleted:
            start = None if entry["start"] is None else Position.parse(entry["start"])
            subscription = self.subscriptions[name] = Subscription(*name, versions=[], start=start)
        subscription.versions.append((self.revision, entry["filter"]))
        subscription.order_by, subscription.max_attempts = entry["order_by"], entry["max_attempts"]

    def _apply_delivery(self, subscription: Subscription, verb: str, positions: list[Position]) -> None:
        """Move messages between the states pending, in flight, acked and dead."""
        if verb == "seek":
            (subscription.cursor,) = positions
            for settled in (subscription.acked, subscription.dead):
                settled.difference_update([at for at in settled if at >= subscription.cursor])
            subscription.leases.clear()
            subscription.delayed.clear()
        for at in positions:
            if verb == "deliver":
                subscription.attempts[at] = subscription.attempts.get(at, 0) + 1
                subscription.delayed.pop(at, None)
            elif verb == "ack":
                subscription.acked.add(at)
                subscription.dead.discard(at)  # an ack that comes late still counts
            elif verb == "bury" and at not in subscription.acked:
                subscription.dead.add(at)
            elif verb == "revive":
                subscription.dead.discard(at)
                subscription.attempts.pop(at, None)
            if verb != "deliver":
                subscription.leases.pop(at, None)

    def crash(self) -> None:
        """End without another word, as a killed process does."""
        self._journal.close()


def _value(event: Event, attribute: str | None) -> Any:
    """Return an attribute of an event by its dotted name, or None where there is none."""
    value: Any = event
    for step in (attribute or "").split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def main() -> None:
    """Publish, match, deliver, crash and go on."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        service = TinyFieldfare(path)
        service.subscribe("default", "late", "data.delay > 30")
        events = [{"id": str(n), "source": "/jfk", "type": "departed", "data": {"delay": n}} for n in (5, 45)]
        print("stored at", *service.publish("default", events))
        service.subscribe("default", "late", "data.delay > 60")  # does not touch what is already stored
        (message,) = service.pull("default", "late", limit=10, now_s=0.0)
        print("delivered", message.position, message.event["data"], "attempt", message.attempt)
        service.crash()  # before the ack
        service = TinyFieldfare(path)
        (message,) = service.pull("default", "late", limit=10, now_s=1.0)
        print("delivered", message.position, message.event["data"], "attempt", message.attempt)
        service.ack("default", "late", [message.position])
        service.crash()
        service = TinyFieldfare(path)
        print("left", service.pull("default", "late", limit=10, now_s=100.0))
        service.crash()


if __name__ == "__main__":
    main()
