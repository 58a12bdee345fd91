"""A simulated matcher: a FIFO queue for each of its sets of subscriptions, and one processor for all.

Li et al. 2011, section III.B: "a separate queue is used to store incoming messages on each dimension before
they are matched", and the sets compete for the matcher's resources. The processor is shared evenly between
the sets with waiting messages: the one with the least time so far is next, one message at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import simpy

from fieldfare.forwarding import LoadMeter, LoadReport
from fieldfare_lab.simulation.bluedove.model import ServiceModel, Trace


class Store(Protocol):
    """The subscriptions of a matcher, a set for each key."""

    def sizes(self) -> dict[int, int]:
        """Return the number of subscriptions in each set."""

    def search(self, key: int, message: int) -> list[int]:
        """Return the subscriptions of a set that a message matches, ascending."""


@dataclass(slots=True)
class _Set:
    waiting: deque[int] = field(default_factory=deque)
    had_s: float = 0.0
    """Processor time used, or that would have been used if the set had never been idle."""
    busy_since_s: float = 0.0
    arrived: int = 0
    matched: int = 0
    matching_s: float = 0.0


class Matcher:
    """One matcher.

    Parameters
    ----------
    number
        Its number, in the trace.
    searches
        Whether messages are matched, or only take their time.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        number: int,
        store: Store,
        model: ServiceModel,
        trace: Trace,
        searches: bool,
    ) -> None:
        self.number = number
        self.is_up = True
        self.store = store
        self._environment = environment
        self._model = model
        self._trace = trace
        self._searches = searches
        self._sets: dict[int, _Set] = {}
        self._sizes = store.sizes()
        self._service_s: dict[int, float] = {}
        self._working = False
        self._had_s = 0.0
        self.busy_s = 0.0
        self._meter = LoadMeter(environment.now, model.window_s, model.least_change)

    def receive(self, key: int, messages: Sequence[int]) -> None:
        """Add messages to the queue of a set."""
        now = self._environment.now
        found = self._sets.setdefault(key, _Set())
        if not found.waiting:
            found.busy_since_s = now
            found.had_s = max(found.had_s, self._had_s)
        found.waiting.extend(messages)
        found.arrived += len(messages)
        self._trace.queued_s[messages] = now
        if not self._working:
            self._next()

    def crash(self) -> None:
        """Crash: all waiting messages are lost."""
        self.is_up = False
        self._trace.crashed_s[self.number] = self._environment.now

    def _next(self) -> None:
        ready = [(found.had_s, key) for key, found in self._sets.items() if found.waiting]
        self._working = bool(ready)
        if not ready:
            return
        self._had_s, key = min(ready)
        message = self._sets[key].waiting[0]
        self._trace.started_s[message] = self._environment.now
        service_s = self._time_s(key)
        timer = self._environment.timeout(service_s)
        timer.callbacks.append(self._finisher(key, message, service_s))

    def _time_s(self, key: int) -> float:
        service_s = self._service_s.get(key)
        if service_s is None:
            one_s = self._model.service_time.time_s(self._sizes.get(key, 0))
            service_s = self._service_s[key] = one_s * self._model.bundle_messages
        return service_s

    def _finisher(self, key: int, message: int, service_s: float) -> Callable[[simpy.Event], None]:
        def finish(_: simpy.Event) -> None:
            if not self.is_up:
                return
            now = self._environment.now
            found = self._sets[key]
            found.waiting.popleft()
            found.had_s += service_s
            found.matched += 1
            found.matching_s += now - found.busy_since_s if self._model.competition_counts else service_s
            found.busy_since_s = now
            self.busy_s += service_s
            self._trace.delivered_s[message] = now
            if self._searches:
                self._trace.matches[message] = self.store.search(key, message)
            self._next()

        return finish

    @property
    def backlog_s(self) -> float:
        """Seconds of waiting work."""
        return sum(len(found.waiting) * self._time_s(key) for key, found in self._sets.items())

    def reports(self) -> list[LoadReport]:
        """Return the loads that changed; to be called once per report period. `slice` is the set's key."""
        now = self._environment.now
        self._sizes = self.store.sizes()
        self._service_s.clear()
        for key, found in self._sets.items():
            if found.arrived:
                self._meter.arrived(key, found.arrived, now)
            if found.matched:
                self._meter.matched(key, found.matched, found.matching_s, now)
            found.arrived = found.matched = 0
            found.matching_s = 0.0
        self._trace.busy_s[self.number] = self.busy_s
        return self._meter.reports(self._sizes, now)
