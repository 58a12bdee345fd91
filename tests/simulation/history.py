"""What people asked for, what they were answered, and what must therefore be true: nobody here sees a disk.

An event is known by its ``id``, a version of a filter by the ``revision`` that an answer gave it: it counts
for records whose answers gave a ``stamp`` from that on, until the next one does.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fieldfare.model import Position

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import tiny_fieldfare as tiny

Event = dict[str, Any]


class Broken(AssertionError):
    """A promise that was not kept; the first word of what is said is its kind."""


def hold(kept: bool, what: str) -> None:
    """Complain when a promise is not kept."""
    if not kept:
        raise Broken(what)


@cache
def _matches(text: str, x: int, k: str) -> bool:
    return tiny.matches(text, {"data": {"x": x, "k": k}})


def matches(text: str, event: Mapping[str, Any]) -> bool:
    """Remember what the naive evaluator says of the few events that there are."""
    return _matches(text, event["data"]["x"], event["data"]["k"])


@dataclass
class Record:
    """A publish call that was answered."""

    space: str
    events: list[Event]
    stamp: int
    asked_s: float
    answered_s: float


@dataclass
class HeldMessage:
    """A message that somebody was given last.

    Attributes
    ----------
    attempt
        Which time it was.
    asked_s, heard_s
        When it was asked for, and when it was there.
    until_s
        Until when nobody else may have it, at least.
    """

    attempt: int
    asked_s: float
    heard_s: float
    until_s: float


@dataclass
class Reading:
    """A subscription and what its readers heard.

    Attributes
    ----------
    space
        Which space: its name, and the how manieth of that name.
    versions
        Its filters, each with its revision.
    start
        Where it began in the past, by partition.
    order_by, max_attempts
        How it is delivered.
    is_alone
        Whether it has one reader.
    """

    space: str
    id: str
    versions: list[tuple[int, str]]
    start: dict[int, Position] | None
    order_by: str | None
    max_attempts: int | None
    is_alone: bool
    acked: dict[Position, float] = field(default_factory=dict)
    """When the answer to an ack came."""
    given: dict[Position, str] = field(default_factory=dict)
    leases: dict[Position, HeldMessage] = field(default_factory=dict)
    nacking: Counter[Position] = field(default_factory=Counter)
    nacked: dict[Position, float] = field(default_factory=dict)
    """When the answer to the last nack came."""
    dead: set[Position] = field(default_factory=set)
    owed_from: dict[int, Position] = field(default_factory=dict)
    """Where somebody set it to: what lies before it is settled."""
    high: dict[int, Position] = field(default_factory=dict)
    trail: list[tuple[bool, Position]] = field(default_factory=list)
    """In order: what was given (True), and what an ack was sent of."""
    is_plain: bool = True
    """Whether nobody set it to another place, or had anything given up."""
    lives: int = 0
    """Of how many gateways it has heard."""

    def hears_of(self, lives: int) -> None:
        """There is a new gateway, perhaps: what was not acked may come again, from its beginning."""
        if lives != self.lives:
            self.lives = lives
            self.high.clear()
            self.leases.clear()

    def hear(
        self, at: Position, event: str, attempt: int, asked_s: float, heard_s: float, lease_s: float
    ) -> None:
        """A message came, in an answer to what was asked then."""
        name = f"{self.space}/{self.id} at {at}"
        acked_s = self.acked.get(at)
        hold(acked_s is None or acked_s > asked_s, f"doubled: {name} was given after its ack")
        hold(self.given.setdefault(at, event) == event, f"wrong: {name} is {event}, and was {self.given[at]}")
        self._lease(at, HeldMessage(attempt, asked_s, heard_s, asked_s + lease_s), name)
        hold(attempt <= (self.max_attempts or attempt), f"wrong: {name} was given {attempt} times")
        if self.is_alone and self.order_by is None and not any(g and p == at for g, p in self.trail):
            high = self.high.get(at.partition)
            hold(high is None or at > high, f"wrong: {name} came after {high}")
            self.high[at.partition] = at
        self.trail.append((True, at))

    def _lease(self, at: Position, new: HeldMessage, name: str) -> None:
        """Of two who have it one had it first; its answer may have been longer on its way."""
        old = self.leases.get(at)
        if old is not None and new.attempt < old.attempt:
            old, new = new, old
        # A late nack, by who had it before, ends the lease of whoever has it now.
        is_free = old is None or old.until_s <= new.heard_s or self._may_be_nacked(at, old.asked_s)
        hold(is_free, f"doubled: {name} was given to two at once")
        self.leases[at] = new

    def settle(self, places: Iterable[Position]) -> None:
        """An ack is sent."""
        self.trail += ((False, at) for at in places)

    def confirm(self, places: Iterable[Position], now_s: float) -> None:
        """An ack was answered."""
        for at in places:
            self.acked.setdefault(at, now_s)

    def _may_be_nacked(self, at: Position, since_s: float) -> bool:
        return self.nacking[at] > 0 or self.nacked.get(at, float("-inf")) >= since_s

    @contextmanager
    def freed(self, places: Sequence[Position], now_s: Callable[[], float]) -> Iterator[None]:
        """While these are nacked they may be given again at any moment."""
        self.free(places)
        self.nacking.update(places)
        yield
        self.nacking.subtract(places)
        self.nacked |= dict.fromkeys(places, now_s())
        self.free(places)

    def free(self, places: Iterable[Position]) -> None:
        """These may be given again."""
        for at in places:
            self.leases.pop(at, None)

    def sought(self, cursor: dict[int, Position]) -> None:
        """It was set to another place."""
        self.is_plain = False
        self.leases.clear()
        self.high.clear()
        self.owed_from |= cursor
        for at in [at for at in self.acked if at.partition in cursor and at >= cursor[at.partition]]:
            del self.acked[at]
        self.trail.clear()

    def retried(self) -> None:
        """What was given up comes again."""
        self.is_plain = False
        for at in self.dead:
            self.acked.pop(at, None)
            self.leases.pop(at, None)
        self.dead.clear()


class History:
    """All of it."""

    def __init__(self) -> None:
        self.events: dict[str, tuple[str, Event]] = {}
        """All that were ever sent, with their spaces."""
        self.records: dict[tuple[int, int], Record] = {}
        self.readings: list[Reading] = []
        self._changes: dict[str, list[tuple[int, float]]] = {}
        """By space, revisions that answers gave, and when."""
        self.starts: dict[int, int] = {}
        """What retention has taken ends here, by partition."""

    def publish(self, partition: int, offset: int, record: Record) -> None:
        """A publish call was answered."""
        hold((partition, offset) not in self.records, f"wrong: two became record {partition}-{offset}")
        self.records[partition, offset] = record
        for revision, answered_s in self._changes.get(record.space, ()):
            hold(
                revision <= record.stamp or answered_s > record.asked_s,
                f"wrong: record {partition}-{offset} was published after revision {revision} was answered",
            )

    def change(self, space: str, revision: int, asked_s: float, answered_s: float) -> None:
        """A change was answered: what is published from now on meets it, what was there before does not."""
        self._changes.setdefault(space, []).append((revision, answered_s))
        for (partition, offset), record in self.records.items():
            hold(
                record.space != space or record.stamp < revision or record.answered_s > asked_s,
                f"wrong: record {partition}-{offset} was there before revision {revision} was asked for",
            )

    def heard(self, reading: Reading, event: str) -> None:
        """Whatever a subscription is given is of its space."""
        hold(event in self.events, f"wrong: nobody sent {event}")
        space, _ = self.events[event]
        hold(space == reading.space, f"foreign: {reading.space}/{reading.id} was given {event} of {space}")

    def owed(self, reading: Reading) -> dict[Position, Event]:
        """All that matches a subscription, as the smallest fieldfare defines it."""
        records = ((Position(*place, 0), record) for place, record in self.records.items())
        found = tiny.matching_events(records, reading.space, reading.versions, reading.start, matches)
        return dict(found)

    def left(self, reading: Reading) -> list[Position]:
        """What a subscription is owed and has not settled."""
        return sorted(
            at
            for at in self.owed(reading)
            if at not in reading.acked
            and at not in reading.dead
            and at >= reading.owed_from.get(at.partition, at)
            and at.offset >= self.starts.get(at.partition, 0)
        )

    def check(self, reading: Reading) -> None:
        """All is over: everything that came was owed, and in the order in which it may."""
        owed = self.owed(reading)
        name = f"{reading.space}/{reading.id}"
        for at, event in reading.given.items():
            expected = owed.get(at)
            hold(expected is not None, f"wrong: {name} was given {event} at {at}, which it does not match")
            hold(expected is None or expected["id"] == event, f"wrong: {name} was given {event} at {at}")
        left = self.left(reading)
        hold(not left, f"lost: {name} was never given {', '.join(map(str, left[:5]))}")
        hold(reading.dead <= owed.keys(), f"wrong: {name} has dead letters that it does not match")
        if reading.max_attempts is None and reading.is_plain:
            hold(not reading.dead, f"wrong: {name} gave up {sorted(reading.dead)[:3]}")
            if reading.order_by is not None and reading.is_alone:
                self._check_keys(reading, owed)

    def _check_keys(self, reading: Reading, owed: dict[Position, Event]) -> None:
        """Of an ordering key nothing comes before what is older is settled."""
        key_of = {at: event["data"]["k"] for at, event in owed.items()}
        settled: set[Position] = set()
        for is_given, at in reading.trail:
            if not is_given:
                settled.add(at)
                continue
            before = [
                each
                for each in owed
                if each.partition == at.partition and each < at and key_of[each] == key_of[at]
                and each.offset >= self.starts.get(each.partition, 0)
            ]  # fmt: skip
            waits = [each for each in before if each not in settled]
            hold(
                not waits, f"wrong: {reading.space}/{reading.id} was given {at} before {waits[:1]} of its key"
            )
