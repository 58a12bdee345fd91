"""An edge broker of the simulation: input queue, matching engine, output link, and what it measures.

    from the head ──▶ input queue ──▶ engine (one server) ──▶ output link (bandwidth) ──▶ subscribers

The matching delay follows the number of subscriptions and, a little, the matches; equation 4 knows only the
first. A subscription has a first record and a last one here, so that an event belongs to one broker.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from fieldfare.balancing import Load, MatchingCost

NEVER = np.iinfo(np.int64).max
WINDOW_S = 30.0
"""Length of the window over which a load is measured."""
LOG_MAX = 4_000
"""Events in the log of matches that PRESS may read."""
CAUGHT_UP_S = 1.0
"""A longer queue, in seconds of matching, is one that the broker works off."""
FIXED_CYCLES, SUBSCRIPTION_CYCLES, MATCH_CYCLES = 20_000.0, 17_000.0, 20_000.0
"""CPU cycles of a message, of each subscription in the engine, and of each match: chosen, once for all
figures, so that the local set-up uses 40 % of its CPUs before the step and 60 % after it."""
BASE_BYTES, SUBSCRIPTION_BYTES, QUEUED_BYTES = 8e6, 20e3, 5e3
"""Memory of a broker, a subscription, and a message that waits: chosen."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a broker runs on."""

    mhz: float
    memory_mb: float
    mbps: float

    @property
    def cost(self) -> MatchingCost:
        """The times of its matching engine."""
        hertz = self.mhz * 1e6
        return MatchingCost(FIXED_CYCLES / hertz, SUBSCRIPTION_CYCLES / hertz, MATCH_CYCLES / hertz)


@dataclass(slots=True)
class Counters:
    """Sums since the start, from which loads over a window are differences."""

    at_s: float = 0.0
    arrived: int = 0
    processed: int = 0
    matching_s: float = 0.0
    busy_s: float = 0.0
    sent_bytes: float = 0.0
    delivered: int = 0

    def copy(self, at_s: float) -> Counters:
        """Return the sums at a time."""
        return Counters(
            at_s,
            self.arrived,
            self.processed,
            self.matching_s,
            self.busy_s,
            self.sent_bytes,
            self.delivered,
        )


@dataclass(slots=True)
class Arrived:
    """A publication in the input queue."""

    offset: int
    quote: int
    published_s: float
    subscribers: Any = None
    version: int = -1


@dataclass(slots=True)
class Draining:
    """Subscriptions that leave once everything before a place is delivered."""

    below: int
    then: Callable[[], None]


@dataclass(slots=True)
class EdgeEngine:
    """An edge broker.

    Parameters
    ----------
    matched
        By quote, the subscribers whose filters match it.
    count
        Number of subscribers.
    sizes
        Bytes of each quote.
    deliver
        Called with the subscribers, offset, and delay of each delivery.

    Attributes
    ----------
    first, until
        By subscriber, the first record that is delivered here, and the first that is not any more.
    held
        Subscribers that joined and whose old broker has not released them. Their events are kept; if
        `is_calibrated`, they count as output when they are matched, as they are this broker's to send.
    """

    clock: simpy.Environment
    machine: Machine
    matched: list[Any]
    count: int
    sizes: Any
    deliver: Callable[[Any, int, float], None]
    is_calibrated: bool = False
    first: Any = None
    until: Any = None
    held: Any = None
    kept: list[tuple[int, int, float, int]] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    log: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=LOG_MAX))
    watching: list[Callable[[int], None]] = field(default_factory=list)
    last_arrived: int = -1
    _snapshots: deque[Counters] = field(default_factory=deque)
    _queue: deque[Arrived] = field(default_factory=deque)
    _started_s: float | None = None
    _free_s: float = 0.0
    _version: int = 0
    _subscriptions: int = 0
    _leaving: list[int] = field(default_factory=list)
    _draining: list[Draining] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first = np.full(self.count, NEVER)
        self.until = np.full(self.count, NEVER)
        self.held = np.zeros(self.count, dtype=bool)

    @property
    def subscriptions(self) -> int:
        """Number of subscriptions in the engine, without those that leave."""
        return self._subscriptions - len(self._leaving)

    @property
    def waiting(self) -> int:
        """Number of publications in the input queue."""
        return len(self._queue)

    @property
    def is_catching_up(self) -> bool:
        """Whether the broker works off a queue, or waits for one from which subscribers have come."""
        takes_s = self.machine.cost.of(self._subscriptions, 0)
        return bool(self._draining or self.held.any() or self.waiting * takes_s > CAUGHT_UP_S)

    def examined(self, offset: int) -> int:
        """Return the number of subscriptions with which a publication is compared."""
        return self._subscriptions - bisect_right(self._leaving, offset)

    def set_places(self, subscriber: int, first: int, until: int = NEVER, *, is_held: bool = False) -> None:
        """Set from which record on and up to which one a subscriber's events are delivered here."""
        self._subscriptions += int(self.first[subscriber] == NEVER) - int(first == NEVER)
        if self.until[subscriber] != NEVER:
            self._leaving.remove(int(self.until[subscriber]))
        if until != NEVER:
            insort(self._leaving, until)
        self.first[subscriber], self.until[subscriber], self.held[subscriber] = first, until, is_held
        self._version += 1

    def subscribers_of(self, offset: int, quote: int) -> Any:
        """Return the subscribers to whom a publication is delivered here."""
        found = self.matched[quote]
        return found[(self.first[found] <= offset) & (offset < self.until[found])]

    def arrive(self, offset: int, quote: int, published_s: float) -> None:
        """Take a publication into the input queue."""
        self.counters.arrived += 1
        self.last_arrived = offset
        self.log.append((self.clock.now, quote))
        for watcher in list(self.watching):
            watcher(quote)
        self._queue.append(Arrived(offset, quote, published_s))
        if self._started_s is None:
            self._serve()

    def _serve(self) -> None:
        event = self._queue[0]
        event.subscribers, event.version = self.subscribers_of(event.offset, event.quote), self._version
        takes_s = self.machine.cost.of(self.examined(event.offset), len(event.subscribers))
        self._started_s = self.clock.now
        timer = self.clock.timeout(takes_s)
        timer.callbacks.append(lambda _: self._served(event, takes_s))

    def _served(self, event: Arrived, takes_s: float) -> None:
        self._queue.popleft()
        self.counters.processed += 1
        self.counters.matching_s += takes_s
        self.counters.busy_s += takes_s
        self._started_s = None
        self._send(event)
        if self._queue:
            self._serve()
        self._check_drained()

    def _send(self, event: Arrived) -> None:
        subscribers = event.subscribers
        if event.version != self._version:
            # A subscription has left or opened while the event was matched.
            subscribers = self.subscribers_of(event.offset, event.quote)
        is_held = self.held[subscribers]
        if is_held.any():
            for each in subscribers[is_held]:
                self.kept.append((int(each), event.offset, event.published_s, event.quote))
            if self.is_calibrated:
                self._count(int(is_held.sum()), event.quote)
            subscribers = subscribers[~is_held]
        if len(subscribers):
            self._count(len(subscribers), event.quote)
            self._out(subscribers, event.offset, event.quote, event.published_s)

    def _count(self, deliveries: int, quote: int) -> None:
        self.counters.sent_bytes += float(self.sizes[quote]) * deliveries
        self.counters.delivered += deliveries

    def _out(self, subscribers: Any, offset: int, quote: int, published_s: float) -> None:
        sent = float(self.sizes[quote]) * len(subscribers)
        start_s = max(self.clock.now, self._free_s)
        self._free_s = start_s + sent / (self.machine.mbps * 1e6 / 8)
        self.deliver(subscribers, offset, (start_s + self._free_s) / 2 - published_s)

    def open(self, subscriber: int, place: int) -> None:
        """Deliver a subscriber's kept events from a place on."""
        self.set_places(subscriber, max(int(self.first[subscriber]), place))
        mine = [each for each in self.kept if each[0] == subscriber]
        self.kept = [each for each in self.kept if each[0] != subscriber]
        for _, offset, published_s, quote in mine:
            if offset >= place:
                if not self.is_calibrated:
                    self._count(1, quote)
                self._out(np.array([subscriber]), offset, quote, published_s)

    def remove(self, subscriber: int) -> None:
        """Remove a subscription."""
        self.set_places(subscriber, NEVER)
        self.kept = [each for each in self.kept if each[0] != subscriber]

    def drain(self, below: int, then: Callable[[], None]) -> None:
        """Call back when everything before a place is delivered; it must have arrived."""
        self._draining.append(Draining(below, then))
        self._check_drained()

    def _check_drained(self) -> None:
        oldest = self._queue[0].offset if self._queue else NEVER
        done = [each for each in self._draining if each.below <= oldest]
        if done:
            self._draining = [each for each in self._draining if each.below > oldest]
            timer = self.clock.timeout(max(0.0, self._free_s - self.clock.now))
            for each in done:
                timer.callbacks.append(lambda _, each=each: each.then())  # type: ignore[misc]

    # Measuring

    def snapshot(self) -> Counters:
        """Note the sums now, as a start of later windows."""
        found = self.counters.copy(self.clock.now)
        if self._started_s is not None:
            found.busy_s += self.clock.now - self._started_s
        self._snapshots.append(found)
        while self._snapshots[0].at_s < self.clock.now - 2 * WINDOW_S:
            self._snapshots.popleft()
        return found

    def load(self, since_s: float) -> Load:
        """Return the load over the last window, which begins at `since_s` at the earliest."""
        now = self.snapshot()
        from_s = max(since_s, now.at_s - WINDOW_S)
        before = next((each for each in self._snapshots if each.at_s >= from_s - 1e-6), now)
        span_s = max(1e-9, now.at_s - before.at_s)
        processed = now.processed - before.processed
        count, cost = self.subscriptions, self.machine.cost
        matching_s = (now.matching_s - before.matching_s) / processed if processed else cost.of(count, 0)
        waiting = len(self._queue)
        memory = self.machine.memory_mb * 1e6
        return Load(
            input_per_s=(now.arrived - before.arrived) / span_s,
            matching_s=matching_s if count else 0.0,
            subscriptions=count,
            deliveries_per_s=(now.delivered - before.delivered) / span_s,
            output_bytes_per_s=(now.sent_bytes - before.sent_bytes) / span_s,
            output_bytes_per_s_max=self.machine.mbps * 1e6 / 8,
            cpu=min(1.0, (now.busy_s - before.busy_s) / span_s),
            memory=(BASE_BYTES + SUBSCRIPTION_BYTES * count + QUEUED_BYTES * waiting) / memory,
            memory_per_subscription=SUBSCRIPTION_BYTES / memory,
            input_queue_s=max(0, waiting - 1) * matching_s,
            output_queue_s=max(0.0, self._free_s - self.clock.now),
            cost=cost,
            is_calibrated=self.is_calibrated,
            span_s=now.at_s - before.at_s,
        )
