"""The queue of events waiting to be sent, and the policies that cut it into batches.

`EventQueue` has no I/O and no clock: the synchronous publisher guards it with a lock, the asyncio one needs
none. A `BatchPolicy` is asked for its limits each time, so that they may change while events flow;
`BatchSettings` is the policy with fixed limits. A `PollingPolicy` decides itself when a batch is due.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Literal, Protocol, runtime_checkable

from fieldfare.client.errors import FieldfareError, KeptInOutbox, PublishError, Refusal
from fieldfare.client.in_flight import InFlight
from fieldfare.client.protocol import PublishAnswer
from fieldfare.model import RECORD_EVENTS_MAX, Position

SEQUENCE_SPREAD_MAX = 500
"""Maximum distance, in requests, between the newest and the oldest in flight; the newest waits at the bound.
The service detects duplicates among a producer's last 1,000 sequences, and a request that keeps failing must
stay among them."""


SEQUENCE_STEP = RECORD_EVENTS_MAX
"""Distance between the sequences of consecutive requests: it leaves numbers for the parts of a split one."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Measurements of one finished request, for adaptive policies. ``ended_s`` is on a monotonic clock.

    ``in_flight_events`` are the events that were in flight until then, those of this request included.
    """

    events: int
    size_bytes: int
    waited_s: float
    took_s: float
    attempts: int
    acknowledged: bool
    backlog_events: int
    ended_s: float = 0.0
    in_flight_events: int = 0


class BatchPolicy(Protocol):
    """A policy for how events are batched."""

    def limits(self) -> BatchSettings:
        """Return the current limits."""

    def observe(self, report: BatchReport) -> None:
        """Learn from a finished request."""


@runtime_checkable
class PollingPolicy(BatchPolicy, Protocol):
    """A policy that polls the queue, and says at a poll whether a batch is due and how large it is.

    The queue calls it at every change. Between two calls nothing changes, so polls that were due since the
    last call are made up for. The other policies have no polls: a batch is due when it is full, or when its
    first event has lingered.
    """

    def limits(self) -> BatchSettings:
        """Return the current limits; while a batch is due, ``max_events`` is its size."""

    def note(self, waiting_events: int, in_flight_events: int, now_s: float) -> None:
        """Note the numbers of events that wait and that are in flight from now on."""

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until a batch is due or has to be asked for again; 0 for now."""

    def begin(self, now_s: float) -> None:
        """Note that the batch that was due has been taken."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Fixed limits of a publisher's batches.

    Attributes
    ----------
    max_events : int
        Maximum events per request, at most 10,000. More is cheaper per event, fewer is faster for the first.
    max_bytes : int
        Maximum bytes per request; a larger event is sent alone.
    linger_ms : float
        How long an event may wait for others, in milliseconds. 0 sends at once.
    max_in_flight : int
        Maximum requests in flight. The log keeps a publisher's events in the order of their calls in any
        case: each request names the one it follows. Higher: more throughput and lower latency if the round
        trip is long, but more connections; if a request fails, those behind it wait and may be sent again.
        A service too old to keep this order gets one request at a time.
    """

    max_events: int = 1000
    max_bytes: int = 1 << 20
    linger_ms: float = 5.0
    max_in_flight: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.max_events <= RECORD_EVENTS_MAX:
            raise ValueError(f"max_events must be 1 to {RECORD_EVENTS_MAX:,}, not {self.max_events:,}")
        if self.max_bytes < 1 or self.linger_ms < 0 or self.max_in_flight < 1:
            raise ValueError("max_bytes and max_in_flight must be at least 1, linger_ms at least 0")

    def limits(self) -> BatchSettings:
        """Return these settings."""
        return self

    def observe(self, report: BatchReport) -> None:
        """Do nothing: fixed settings do not adapt."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The bounds of a publisher's queue in memory, and what `publish` does when the queue is full.

    Attributes
    ----------
    max_events : int, optional
        Maximum events that wait for a request; None: only ``max_bytes`` bounds them.
    max_bytes : int
        Maximum bytes of these events. Higher bridges longer outages of the service and takes more memory.
    when_full : "block", "raise" or "drop"
        "block" waits for room (an asyncio program awaits `drain` instead). "raise" raises `QueueFull`, for
        programs that must not wait. "drop" does not send the event: its future fails with `QueueFull`, and
        `PublisherStats.dropped_events` counts it; for sensor readings, say, where the next one comes soon.
    """

    max_events: int | None = None
    max_bytes: int = 64 << 20
    when_full: Literal["block", "raise", "drop"] = "block"

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or (self.max_events is not None and self.max_events < 1):
            raise ValueError("max_events and max_bytes must be at least 1")
        if self.when_full not in ("block", "raise", "drop"):
            raise ValueError(f'when_full must be "block", "raise" or "drop", not {self.when_full!r}')


class Receiver(Protocol):
    """The waiter for the outcome of events that were queued by one call."""

    def receive(self, start: int, positions: Sequence[Position | None], refused: dict[int, Refusal]) -> None:
        """Take the outcome of ``len(positions)`` events of the call, from the ``start``-th on.

        A refused event has the position None and an entry in ``refused``, whose keys count from ``start``.
        """

    def fail(self, start: int, count: int, error: FieldfareError) -> None:
        """Take the final error of ``count`` events of the call, from the ``start``-th on."""


class OneEvent:
    """The receiver of a call with a single event."""

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
    """The receiver of a call with many events, which may be sent in several requests."""

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
    """Events that one call added: ``count`` of them still wait, from the ``start``-th on."""

    receiver: Receiver
    start: int
    count: int
    added_s: float


Runs = tuple[tuple[Receiver, int, int], ...]
"""Receivers, each with the start and the number of the events that it waits for."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that are sent in one request, with a sequence number.

    ``is_repeat``: the request may have reached the service before (an earlier run of the program sent it).
    """

    producer: str
    sequence: int
    lines: list[bytes]
    size_bytes: int
    runs: Runs
    added_s: float
    is_repeat: bool = False

    def cut_in_two(self) -> tuple[Batch, Batch]:
        """Return two batches of half the events; the second keeps the sequence that later batches follow."""
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
        """Pass every receiver the outcome of its events."""
        at = 0
        for receiver, start, count in self.runs:
            refused: dict[int, Refusal] = {}
            if answer.refused:
                refused = {i: answer.refused[at + i] for i in range(count) if at + i in answer.refused}
            receiver.receive(start, answer.positions[at : at + count], refused)
            at += count

    def fail(self, error: FieldfareError) -> None:
        """Pass every receiver the request's final error."""
        fail_runs(self.runs, error)


def fail_runs(runs: Runs, error: FieldfareError) -> None:
    """Pass receivers the final error of their events, which were not or will not be acknowledged."""
    for receiver, start, count in runs:
        receiver.fail(start, count, error)


class EventQueue:
    """A queue of events in memory that is taken in batches, in the order in which the events were added.

    Parameters
    ----------
    policy : BatchPolicy
        Decides how large a batch is, and when it is due.
    producer : str
        The producer id, by which the service recognises repeated batches.
    max_bytes, max_events : int
        Bounds of the waiting events; at either bound `has_room` is false.
    """

    def __init__(
        self, policy: BatchPolicy, producer: str, max_bytes: int, max_events: int = sys.maxsize
    ) -> None:
        self.max_bytes = max_bytes
        self.max_events = max_events
        self.size_bytes = 0
        self._policy = policy
        self._polls = policy if isinstance(policy, PollingPolicy) else None
        self._asked_s = 0.0  # When a batch was last asked for.
        self._producer = producer
        self._lines: deque[bytes] = deque()
        self._runs: deque[_Run] = deque()
        self._ready: deque[Batch] = deque()  # Batches that are cut already: they are sent before all others.
        self._most_events = RECORD_EVENTS_MAX
        self._next_sequence = SEQUENCE_STEP - 1
        self._hurried_events = 0
        self._under_way: dict[tuple[str, int], int] = {}  # Their numbers of events.
        self._order = InFlight()
        self._service_keeps_order = False

    def __len__(self) -> int:
        return self._count_open() + sum(len(batch.lines) for batch in self._ready)

    def has_room(self) -> bool:
        """Whether the queue has room for more events."""
        return self.size_bytes < self.max_bytes and len(self._lines) < self.max_events

    def add(
        self, lines: Sequence[bytes], size_bytes: int, receiver: Receiver, start: int, now_s: float
    ) -> None:
        """Queue the events of one call, or a part of them from the ``start``-th on."""
        self._lines.extend(lines)
        self.size_bytes += size_bytes
        self._runs.append(_Run(receiver, start, len(lines), now_s))
        self._note_change(now_s)

    def hurry(self) -> None:
        """Send all events that are queued now without linger."""
        self._hurried_events = self._count_open()

    def due_in_s(self, now_s: float) -> float | None:
        """Return the seconds until a batch is due: 0 for now, None for not before something changes."""
        if not len(self) or not self._may_send():
            return None
        self._asked_s = now_s
        if self.is_full():
            return 0.0
        if self._polls is not None:
            return self._polls.due_in_s(now_s)
        return max(0.0, self._runs[0].added_s + self._policy.limits().linger_ms / 1000 - now_s)

    def is_full(self) -> bool:
        """Whether a batch is due regardless of the time."""
        if self._ready or self._hurried_events > 0:
            return True
        if self._polls is not None:
            return False
        max_events, max_bytes = self._limits()
        return self._count_open() >= max_events or self.size_bytes >= max_bytes

    def take(self) -> Batch:
        """Remove and return the next batch; the queue must not be empty."""
        if self._ready:
            while len(self._ready[0].lines) > self._most_events and not self._ready[0].is_repeat:
                halves = self._cut_in_two(self._ready[0])
                self._ready.popleft()
                self._ready.extendleft(reversed(halves))
            batch = self._ready.popleft()
            self._under_way[batch.producer, batch.sequence] = len(batch.lines)
            self._note_change(self._asked_s)
            return batch
        sequence = self._next_sequence
        lines, size_bytes = self._take_lines(sequence)
        self._next_sequence += SEQUENCE_STEP
        self._under_way[self._producer, sequence] = len(lines)
        self._order.add(sequence)
        added_s = self._runs[0].added_s
        runs = self._take_runs(len(lines))
        self.size_bytes -= size_bytes
        self._hurried_events = max(0, self._hurried_events - len(lines))
        self._note_change(self._asked_s)
        if self._polls is not None:
            self._polls.begin(self._asked_s)
        return Batch(self._producer, sequence, lines, size_bytes, runs, added_s)

    def front(self) -> int | None:
        """Return the sequence of the oldest request in flight; None if there is none."""
        return self._order.front

    def follows(self, batch: Batch) -> int | None:
        """Return the sequence that a batch follows if it is sent now.

        None for batches of an earlier run (in an outbox), which are sent one at a time.
        """
        return self._order.follows(batch.sequence) if batch.producer == self._producer else None

    def learn(self, batch: Batch, newest: int) -> None:
        """Note the newest sequence of the producer, which the service reported for this batch."""
        self._order.learn(batch.sequence, newest)

    def make_durable(self) -> None:
        """Called before each attempt to send a batch; a queue in memory does nothing."""

    def report(
        self, batch: Batch, started_s: float, ended_s: float, attempts: int, acknowledged: bool
    ) -> None:
        """Report the finished request of a batch to the policy; called after `finish`."""
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
                in_flight_events=sum(self._under_way.values()) + len(batch.lines),
            )
        )
        self._note_change(ended_s)

    def finish(self, batch: Batch, fate: PublishAnswer | FieldfareError) -> None:
        """Note the outcome of a batch: the service's answer, or the final error."""
        self._under_way.pop((batch.producer, batch.sequence), None)
        # A batch kept in the outbox must not be overtaken: later ones still follow it.
        if batch.producer == self._producer and not isinstance(fate, KeptInOutbox):
            answer = fate if isinstance(fate, PublishAnswer) else PublishAnswer([])
            self._order.end(batch.sequence, answer.is_taken)
            self._service_keeps_order |= answer.keeps_order

    def split(self, batch: Batch) -> None:
        """Replace a batch that the service found too large with two halves; later batches are as small."""
        first, second = self._cut_in_two(batch)
        self._most_events = min(self._most_events, len(second.lines))
        self._under_way.pop((batch.producer, batch.sequence), None)
        # A later batch may have been split before.
        self._ready = deque(sorted((first, second, *self._ready), key=self._place_of))

    def take_remaining(self) -> Runs:
        """Empty the queue and return the receivers of all events that were in it."""
        ready = [run for batch in self._ready for run in batch.runs]
        rest = self._take_runs(sum(run.count for run in self._runs))
        self._ready.clear()
        self._lines.clear()
        self.size_bytes = 0
        return (*ready, *rest)

    def close(self) -> None:
        """Release resources; a queue in memory has none."""

    def _count_open(self) -> int:
        """Return the number of events that are not in a batch yet."""
        return len(self._lines)

    def _limits(self) -> tuple[int, int]:
        limits = self._policy.limits()
        # A polling policy has no linger that a flush could end: its batch is then all that waits.
        is_cut_short = self._polls is not None and self._hurried_events > 0
        max_events = RECORD_EVENTS_MAX if is_cut_short else limits.max_events
        return min(max_events, self._most_events), limits.max_bytes

    def _note_change(self, now_s: float) -> None:
        """Tell a polling policy how many events wait and are in flight; called after each change."""
        if self._polls is not None:
            self._polls.note(self._count_open(), sum(self._under_way.values()), now_s)

    def _cut_in_two(self, batch: Batch) -> tuple[Batch, Batch]:
        halves = batch.cut_in_two()
        self._note_split(*halves)
        self._order.add(halves[0].sequence)
        return halves

    def _place_of(self, batch: Batch) -> int:
        """Sort key of a ready batch: batches of an earlier run come first, in their order."""
        return batch.sequence if batch.producer == self._producer else -1

    def _note_split(self, first: Batch, second: Batch) -> None:
        """Called before a batch is split in two."""

    def _may_send(self) -> bool:
        is_own = not self._ready or self._ready[0].producer == self._producer
        if self._ready and is_own and self._ready[0].sequence == self._order.front:
            return True  # All requests in flight wait for this part of a split batch.
        is_own = is_own and all(producer == self._producer for producer, _ in self._under_way)
        most = self._policy.limits().max_in_flight if is_own and self._service_keeps_order else 1
        if len(self._under_way) >= most:
            return False  # The policy may have lowered its limit below the number of senders.
        own = (sequence for producer, sequence in self._under_way if producer == self._producer)
        oldest = min(own, default=self._next_sequence)
        return self._next_sequence - oldest < SEQUENCE_SPREAD_MAX * SEQUENCE_STEP

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
        sizes = list(accumulate(map(len, islice(self._lines, max_events))))
        count = max(1, bisect_right(sizes, max_bytes))
        return [self._lines.popleft() for _ in range(count)], sizes[count - 1]
