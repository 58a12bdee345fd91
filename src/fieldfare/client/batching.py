"""Events waiting to be sent, and when how many of them make a batch.

The `EventQueue` is a machine without I/O or clock: the sync publisher guards it with a lock, the async one
needs none. How large a batch is and how long it waits is asked of a `BatchPolicy` each time, so a policy
may change its mind while events flow; `BatchSettings` is the policy that never does.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from fieldfare.client.errors import FieldfareError, KeptInOutbox, PublishError, Refusal
from fieldfare.client.in_flight import InFlight
from fieldfare.client.protocol import PublishAnswer
from fieldfare.model import Position

MAX_SEQUENCE_SPREAD = 500
"""How far the newest request may run ahead of the oldest that is still under way. The service recognises a
repeat among a producer's last 1,000 sequences, so a request that keeps failing must not fall behind those."""

MAX_RECORD_EVENTS = 10_000
"""The most events that the service takes in one request."""

SEQUENCE_STEP = MAX_RECORD_EVENTS
"""From one request's sequence to the next: room for the parts of one that has to be cut up on its way."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one finished request taught: for policies that adapt. ``ended_s`` is on a monotonic clock."""

    events: int
    size_bytes: int
    waited_s: float
    took_s: float
    attempts: int
    acknowledged: bool
    backlog_events: int
    ended_s: float = 0.0


class BatchPolicy(Protocol):
    """Decides how events are batched."""

    def limits(self) -> BatchSettings:
        """The limits that hold now."""

    def observe(self, report: BatchReport) -> None:
        """Learn from a finished request."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Fixed limits of a publisher's batches.

    Attributes
    ----------
    max_events : int
        Events in one request, at most 10,000. More is cheaper for each event, fewer is quicker for the first.
    max_bytes : int
        Bytes in one request; a larger event goes alone.
    linger_ms : float
        How long an event may wait for company. 0 sends at once what is there.
    max_in_flight : int
        Requests at the same time. The log holds a publisher's events in the order of their calls in any case:
        each request says which one it follows. Up: more throughput and younger events where the round trip
        is long, more connections; where one fails, those behind it wait for it and may be sent again. A
        service that knows nothing of this order is sent one request at a time.
    """

    max_events: int = 1000
    max_bytes: int = 1 << 20
    linger_ms: float = 5.0
    max_in_flight: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.max_events <= MAX_RECORD_EVENTS:
            raise ValueError(f"max_events is from 1 to {MAX_RECORD_EVENTS:,}, not {self.max_events:,}")
        if self.max_bytes < 1 or self.linger_ms < 0 or self.max_in_flight < 1:
            raise ValueError("max_bytes and max_in_flight are at least 1, linger_ms at least 0")

    def limits(self) -> BatchSettings:
        """These settings, always."""
        return self

    def observe(self, report: BatchReport) -> None:
        """Fixed settings learn nothing."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How much may wait in a publisher's memory, and what `publish` does when that is full.

    Attributes
    ----------
    max_events : int, optional
        Events that wait for a request; as many as there are bytes for, if None.
    max_bytes : int
        Their bytes. Up: longer pauses of the service are bridged, more memory.
    when_full : "block", "raise" or "drop"
        "block" waits for room (an asyncio program awaits `drain` instead). "raise" raises `QueueFull`: for
        who has something better to do than to wait. "drop" does neither: the event is not sent, its
        future fails with `QueueFull`, and `PublisherStats.dropped_events` counts it; for readings of which
        the next one comes soon.
    """

    max_events: int | None = None
    max_bytes: int = 64 << 20
    when_full: Literal["block", "raise", "drop"] = "block"

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or (self.max_events is not None and self.max_events < 1):
            raise ValueError("max_events and max_bytes are at least 1")
        if self.when_full not in ("block", "raise", "drop"):
            raise ValueError(f'when_full is "block", "raise" or "drop", not {self.when_full!r}')


class Receiver(Protocol):
    """Whoever waits for the fate of a run of events that were handed over together."""

    def receive(self, start: int, positions: Sequence[Position | None], refused: dict[int, Refusal]) -> None:
        """The fate of ``len(positions)`` events, from the ``start``-th of the run; keys of `refused` count
        from ``start`` too."""

    def fail(self, start: int, count: int, error: FieldfareError) -> None:
        """The request with these events failed for good."""


class OneEvent:
    """Receives for a single event."""

    __slots__ = ("_refuse", "_resolve")

    def __init__(self, resolve: Callable[[Position], None], refuse: Callable[[FieldfareError], None]) -> None:
        self._resolve = resolve
        self._refuse = refuse

    def receive(self, start: int, positions: Sequence[Position | None], refused: dict[int, Refusal]) -> None:
        position = positions[0]
        if position is not None:
            self._resolve(position)
        else:
            refusal = refused[0]
            self._refuse(PublishError((), (refusal,)))

    def fail(self, start: int, count: int, error: FieldfareError) -> None:
        self._refuse(error)


class ManyEvents:
    """Receives for a call with many events, which may travel in several requests."""

    def __init__(
        self,
        count: int,
        resolve: Callable[[list[Position]], None],
        refuse: Callable[[FieldfareError], None],
    ) -> None:
        self._positions: list[Position | None] = [None] * count
        self._open_count = count
        self._refused: list[Refusal] = []
        self._unknown: list[int] = []
        self._cause: FieldfareError | None = None
        self._resolve = resolve
        self._refuse = refuse

    def receive(self, start: int, positions: Sequence[Position | None], refused: dict[int, Refusal]) -> None:
        self._positions[start : start + len(positions)] = positions
        for index, refusal in refused.items():
            self._refused.append(
                Refusal(start + index, refusal.detail, refusal.place, refusal.hint, refusal.id)
            )
        self._close(len(positions))

    def fail(self, start: int, count: int, error: FieldfareError) -> None:
        self._unknown.extend(range(start, start + count))
        self._cause = error
        self._close(count)

    def _close(self, count: int) -> None:
        self._open_count -= count
        if self._open_count:
            return
        if not self._refused and not self._unknown:
            self._resolve(self._positions)  # type: ignore[arg-type]  # none of them is None any more
            return
        accepted = [(index, at) for index, at in enumerate(self._positions) if at is not None]
        if self._cause is not None and not accepted and not self._refused:
            self._refuse(self._cause)
            return
        error = PublishError(accepted, sorted(self._refused, key=lambda r: r.index), sorted(self._unknown))
        error.__cause__ = self._cause
        self._refuse(error)


@dataclass(slots=True)
class _Run:
    """Events that were added together: ``count`` of them still wait, from the ``start``-th on."""

    receiver: Receiver
    start: int
    count: int
    added_s: float


Runs = tuple[tuple[Receiver, int, int], ...]
"""Receivers, with the start and the number of the events that each of them waits for."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that travel in one request, under a sequence number of their own.

    ``is_repeat`` says that the request may have arrived before, whatever becomes of this attempt.
    """

    producer: str
    sequence: int
    lines: list[bytes]
    size_bytes: int
    runs: Runs
    added_s: float
    is_repeat: bool = False

    def cut_in_two(self) -> tuple[Batch, Batch]:
        """Two batches of half its events; the second keeps the sequence, which those behind it follow."""
        middle = len(self.lines) // 2
        halves: tuple[list[tuple[Receiver, int, int]], ...] = ([], [])
        at = 0
        for receiver, start, count in self.runs:
            left = min(max(middle - at, 0), count)
            if left:
                halves[0].append((receiver, start, left))
            if count > left:
                halves[1].append((receiver, start + left, count - left))
            at += count
        lines = (self.lines[:middle], self.lines[middle:])
        sequences = (self.sequence - len(lines[1]), self.sequence)
        first, second = (
            replace(
                self,
                sequence=sequences[half],
                lines=lines[half],
                size_bytes=sum(map(len, lines[half])),
                runs=tuple(halves[half]),
            )
            for half in (0, 1)
        )
        return first, second

    def resolve(self, answer: PublishAnswer) -> None:
        """Tell every receiver what became of its events."""
        at = 0
        for receiver, start, count in self.runs:
            refused: dict[int, Refusal] = {}
            if answer.refused:
                refused = {i: answer.refused[at + i] for i in range(count) if at + i in answer.refused}
            receiver.receive(start, answer.positions[at : at + count], refused)
            at += count

    def fail(self, error: FieldfareError) -> None:
        """Tell every receiver that the request failed for good."""
        fail_runs(self.runs, error)


def fail_runs(runs: Runs, error: FieldfareError) -> None:
    """Tell receivers that their events are not going to be sent, or have failed for good."""
    for receiver, start, count in runs:
        receiver.fail(start, count, error)


class EventQueue:
    """A queue of events in memory that gives batches, in the order in which the events were added.

    Parameters
    ----------
    policy : BatchPolicy
        Asked how large a batch is, and when it is due.
    producer : str
        The id under which the service recognises repeated batches.
    max_bytes, max_events : int
        With so many bytes of waiting events, or so many of them, there is no room.
    """

    def __init__(
        self, policy: BatchPolicy, producer: str, max_bytes: int, max_events: int = sys.maxsize
    ) -> None:
        self.max_bytes = max_bytes
        self.max_events = max_events
        self.size_bytes = 0
        self._policy = policy
        self._producer = producer
        self._lines: deque[bytes] = deque()
        self._runs: deque[_Run] = deque()
        self._ready: deque[Batch] = deque()  # What is a batch already, and comes before all others.
        self._most_events = MAX_RECORD_EVENTS
        self._next_sequence = SEQUENCE_STEP - 1
        self._hurried_events = 0
        self._under_way: dict[tuple[str, int], None] = {}
        self._order = InFlight()
        self._service_keeps_order = False

    def __len__(self) -> int:
        return self._count_open() + sum(len(batch.lines) for batch in self._ready)

    def has_room(self) -> bool:
        """Whether more events should be added now."""
        return self.size_bytes < self.max_bytes and len(self._lines) < self.max_events

    def add(
        self, lines: Sequence[bytes], size_bytes: int, receiver: Receiver, start: int, now_s: float
    ) -> None:
        """Queue the events of one call, or a part of them from the ``start``-th on."""
        self._lines.extend(lines)
        self.size_bytes += size_bytes
        self._runs.append(_Run(receiver, start, len(lines), now_s))

    def hurry(self) -> None:
        """Let nothing that is queued now wait for company."""
        self._hurried_events = self._count_open()

    def due_in_s(self, now_s: float) -> float | None:
        """How long until a batch should be sent: 0 is now, None is not before something changes."""
        if not len(self) or not self._may_send():
            return None
        if self.is_full():
            return 0.0
        return max(0.0, self._runs[0].added_s + self._policy.limits().linger_ms / 1000 - now_s)

    def is_full(self) -> bool:
        """Whether a batch should be sent whatever the time is."""
        max_events, max_bytes = self._limits()
        return (
            bool(self._ready)
            or self._hurried_events > 0
            or self._count_open() >= max_events
            or self.size_bytes >= max_bytes
        )

    def take(self) -> Batch:
        """The next batch; the queue must not be empty."""
        if self._ready:
            while len(self._ready[0].lines) > self._most_events and not self._ready[0].is_repeat:
                halves = self._cut_in_two(self._ready[0])
                self._ready.popleft()
                self._ready.extendleft(reversed(halves))
            batch = self._ready.popleft()
            self._under_way[batch.producer, batch.sequence] = None
            return batch
        sequence = self._next_sequence
        lines, size_bytes = self._take_lines(sequence)
        self._next_sequence += SEQUENCE_STEP
        self._under_way[self._producer, sequence] = None
        self._order.add(sequence)
        added_s = self._runs[0].added_s
        runs = self._take_runs(len(lines))
        self.size_bytes -= size_bytes
        self._hurried_events = max(0, self._hurried_events - len(lines))
        return Batch(self._producer, sequence, lines, size_bytes, runs, added_s)

    def front(self) -> int | None:
        """The first request whose fate is not known: what is behind it waits for it."""
        return self._order.front

    def follows(self, batch: Batch) -> int | None:
        """What a batch is to follow if it is sent now; None for those of before, which are sent alone."""
        return self._order.follows(batch.sequence) if batch.producer == self._producer else None

    def learn(self, batch: Batch, newest: int) -> None:
        """The service has said, to this batch, which is the newest of its producer."""
        self._order.learn(batch.sequence, newest)

    def make_durable(self) -> None:
        """Called before each attempt to send a batch; what is kept in memory only has nothing to do."""

    def report(
        self, batch: Batch, started_s: float, ended_s: float, attempts: int, acknowledged: bool
    ) -> None:
        """Tell the policy how the request of a finished batch went."""
        self._policy.observe(
            BatchReport(
                events=len(batch.lines),
                size_bytes=batch.size_bytes,
                waited_s=started_s - batch.added_s,
                took_s=ended_s - started_s,
                attempts=attempts,
                acknowledged=acknowledged,
                backlog_events=len(self),
                ended_s=ended_s,
            )
        )

    def finish(self, batch: Batch, fate: PublishAnswer | FieldfareError) -> None:
        """The fate of this batch is known: the service's answer, or why there is none."""
        self._under_way.pop((batch.producer, batch.sequence), None)
        # What is kept for the next opening may not be overtaken: it is still followed.
        if batch.producer == self._producer and not isinstance(fate, KeptInOutbox):
            answer = fate if isinstance(fate, PublishAnswer) else PublishAnswer([])
            self._order.end(batch.sequence, answer.is_taken)
            self._service_keeps_order |= answer.keeps_order

    def split(self, batch: Batch) -> None:
        """The service finds a batch too large: two halves take its place, and no later one is as large."""
        first, second = self._cut_in_two(batch)
        self._most_events = min(self._most_events, len(second.lines))
        self._under_way.pop((batch.producer, batch.sequence), None)
        # One behind it may have been cut up before.
        self._ready = deque(sorted((first, second, *self._ready), key=self._place_of))

    def take_rest(self) -> Runs:
        """Everybody who waits for an event that is still queued; nothing is queued any more."""
        ready = [run for batch in self._ready for run in batch.runs]
        rest = self._take_runs(sum(run.count for run in self._runs))
        self._ready.clear()
        self._lines.clear()
        self.size_bytes = 0
        return (*ready, *rest)

    def close(self) -> None:
        """Let go of what is held outside memory."""

    def _count_open(self) -> int:
        """Events that are in no batch yet."""
        return len(self._lines)

    def _limits(self) -> tuple[int, int]:
        limits = self._policy.limits()
        return min(limits.max_events, self._most_events), limits.max_bytes

    def _cut_in_two(self, batch: Batch) -> tuple[Batch, Batch]:
        halves = batch.cut_in_two()
        self._note_split(*halves)
        self._order.add(halves[0].sequence)
        return halves

    def _place_of(self, batch: Batch) -> int:
        """Where a batch stands among those that are ready: what is of before comes first, as it was."""
        return batch.sequence if batch.producer == self._producer else -1

    def _note_split(self, first: Batch, second: Batch) -> None:
        """Called before a batch becomes two."""

    def _may_send(self) -> bool:
        is_own = not self._ready or self._ready[0].producer == self._producer
        if self._ready and is_own and self._ready[0].sequence == self._order.front:
            return True  # All that is under way waits for this part of what was cut in two.
        is_own = is_own and all(producer == self._producer for producer, _ in self._under_way)
        most = self._policy.limits().max_in_flight if is_own and self._service_keeps_order else 1
        if len(self._under_way) >= most:
            return False  # A policy may have lowered it below the number of senders.
        own = (sequence for producer, sequence in self._under_way if producer == self._producer)
        oldest = min(own, default=self._next_sequence)
        return self._next_sequence - oldest < MAX_SEQUENCE_SPREAD * SEQUENCE_STEP

    def _take_runs(self, open_count: int) -> Runs:
        runs: list[tuple[Receiver, int, int]] = []
        while open_count:
            run = self._runs[0]
            count = min(run.count, open_count)
            runs.append((run.receiver, run.start, count))
            open_count -= count
            if count == run.count:
                self._runs.popleft()
            else:
                run.start += count
                run.count -= count
        return tuple(runs)

    def _take_lines(self, sequence: int) -> tuple[list[bytes], int]:
        max_events, max_bytes = self._limits()
        queue = self._lines
        lines = [queue.popleft()]
        size_bytes = len(lines[0])
        room = min(max_events, len(queue) + 1)
        while len(lines) < room:
            size_after = size_bytes + len(queue[0])
            if size_after > max_bytes:
                break
            size_bytes = size_after
            lines.append(queue.popleft())
        return lines, size_bytes
