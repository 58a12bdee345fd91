"""A publisher's queue and policy, and a service at the end of a path, in simulated time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import mean

from fieldfare.client.batching import Batch, BatchPolicy, EventQueue, Refusal
from fieldfare.client.errors import FieldfareError
from fieldfare.client.protocol import PublishAnswer
from fieldfare.model import Position

TAKEN = PublishAnswer([Position(0, 0, 0)], keeps_order=True)
CHUNK_EVENTS = 100
FULL_POLL_S = 0.002
"""Seconds after which a program that has too many unanswered events looks again."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the service, or of the client, that works on one request after the other.

    A request of n events occupies it for ``fixed_s + n * each_s`` seconds.
    """

    fixed_s: float
    each_s: float


@dataclass(frozen=True, slots=True)
class _Added:
    """The receiver of events that were added together; it only remembers when."""

    added_s: float

    def receive(self, start: int, positions: Sequence[Position | None], refused: dict[int, Refusal]) -> None:
        raise AssertionError("the simulation resolves no events")

    def fail(self, start: int, count: int, error: FieldfareError) -> None:
        raise AssertionError("no request fails")


class SimulatedService:
    """Sends what a policy decides to a service with a given path and given parts.

    Parameters
    ----------
    policy
        The policy of the publisher.
    round_trip_s
        The round-trip time of the path, in seconds.
    parts
        The parts that a request passes in turn, between the two ways of the path.

    Attributes
    ----------
    answers
        For each answer its time, the request's number of events, and the requests in flight allowed after it.
    """

    def __init__(self, policy: BatchPolicy, round_trip_s: float, parts: Sequence[Part]) -> None:
        self._policy = policy
        self._queue = EventQueue(policy, "producer", 1 << 40)
        self._round_trip_s = round_trip_s
        self._parts = parts
        self._free_s = [0.0] * len(parts)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._now_s = 0.0
        self._look_s = float("inf")
        self._unanswered = 0
        self._ages: list[tuple[float, int, float]] = []
        self.answers: list[tuple[float, int, int]] = []

    def throughput(self, per_s: float, unanswered_max: int, warm_s: float, seconds: float) -> float:
        """Events per second that are acknowledged after ``warm_s``, published without end.

        The program makes ``per_s`` events a second while at most ``unanswered_max`` are not acknowledged.
        """

        def publish() -> None:
            if self._unanswered > unanswered_max:
                self._at(self._now_s + FULL_POLL_S, publish)
                return
            self._add(CHUNK_EVENTS)
            self._at(self._now_s + CHUNK_EVENTS / per_s, publish)

        self._at(0.0, publish)
        self._run_until(warm_s + seconds)
        return sum(events for end_s, events, _ in self.answers if end_s > warm_s) / seconds

    def latency_s(self, per_s: float, warm_s: float, seconds: float) -> float:
        """Mean time until an event of a Poisson process is acknowledged, if it comes after ``warm_s``."""
        chance = random.Random(1)
        due_s = 0.0
        while (due_s := due_s + chance.expovariate(per_s)) < warm_s + seconds:
            self._at(due_s, lambda: self._add(1))
        self._run_until(float("inf"))
        return mean(
            age_s for added_s, events, age_s in self._ages if added_s >= warm_s for _ in range(events)
        )

    def _at(self, due_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (due_s, next(self._numbers), action))

    def _run_until(self, end_s: float) -> None:
        while self._agenda and self._agenda[0][0] <= end_s:
            self._now_s, _, action = heapq.heappop(self._agenda)
            action()

    def _add(self, events: int) -> None:
        self._unanswered += events
        self._queue.add([b"e"] * events, events, _Added(self._now_s), 0, self._now_s)
        self._send()

    def _send(self) -> None:
        """Send all batches that are due, and look again when the next one is."""
        while (wait_s := self._queue.due_in_s(self._now_s)) == 0:
            self._begin(self._queue.take())
        due_s = float("inf") if wait_s is None else self._now_s + wait_s
        if due_s < self._look_s or self._look_s <= self._now_s:
            self._look_s = due_s
            if due_s < float("inf"):
                self._at(due_s, self._send)

    def _begin(self, batch: Batch) -> None:
        began_s = self._now_s
        at_s = began_s + self._round_trip_s / 2
        for number, part in enumerate(self._parts):
            at_s = max(at_s, self._free_s[number]) + part.fixed_s + part.each_s * len(batch.lines)
            self._free_s[number] = at_s
        self._at(at_s + self._round_trip_s / 2, lambda: self._end(batch, began_s))

    def _end(self, batch: Batch, began_s: float) -> None:
        self._unanswered -= len(batch.lines)
        for receiver, _, events in batch.runs:
            assert isinstance(receiver, _Added)
            self._ages.append((receiver.added_s, events, self._now_s - receiver.added_s))
        self._queue.finish(batch, TAKEN)
        self._queue.report(batch, began_s, self._now_s, 1, True)
        self.answers.append((self._now_s, len(batch.lines), self._policy.limits().max_in_flight))
        self._send()
