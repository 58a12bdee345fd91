"""Events waiting to be sent, and when how many of them make a batch.

The `Outbox` is a machine without I/O or clock: the sync publisher guards it with a lock, the async one
needs none. How large a batch is and how long it waits is asked of a `BatchPolicy` each time, so a policy
may change its mind while events flow; `BatchSettings` is the policy that never does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fieldfare.client.errors import FieldfareError, PublishError, Refusal
from fieldfare.client.protocol import PublishAnswer
from fieldfare.model import Position

MAX_SEQUENCE_SPREAD = 500
"""How far the newest request may run ahead of the oldest that is still under way. The service recognises a
repeat among a producer's last 1,000 sequences, so a request that keeps failing must not fall behind those."""

MAX_RECORD_EVENTS = 10_000
"""The most events that the service takes in one request."""


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
        Requests at the same time. With 1 the log holds a publisher's events in the order of their calls. With
        more, requests overtake each other, above all when one has to be repeated; order is then kept inside
        a request only. Worth it when the round trip is long.
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


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that travel in one request, under a sequence number of their own."""

    sequence: int
    lines: list[bytes]
    size_bytes: int
    runs: tuple[tuple[Receiver, int, int], ...]
    added_s: float

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
        for receiver, start, count in self.runs:
            receiver.fail(start, count, error)


class Outbox:
    """A queue of events that gives batches, in the order in which the events were added."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._lines: deque[bytes] = deque()
        self._runs: deque[_Run] = deque()
        self._next_sequence = 0
        self._hurried_events = 0
        self._under_way: dict[int, None] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._lines)

    def add(
        self, lines: Sequence[bytes], size_bytes: int, receiver: Receiver, start: int, now_s: float
    ) -> None:
        """Queue the events of one call, or a part of them from the ``start``-th on."""
        self._lines.extend(lines)
        self._runs.append(_Run(receiver, start, len(lines), now_s))
        self.size_bytes += size_bytes

    def hurry(self) -> None:
        """Let nothing that is queued now wait for company."""
        self._hurried_events = len(self._lines)

    def due_in_s(self, now_s: float) -> float | None:
        """How long until a batch should be sent: 0 is now, None is not before something changes."""
        if not self._lines:
            return None
        if len(self._under_way) >= self._policy.limits().max_in_flight:
            return None  # A policy may have lowered it below the number of senders.
        if self._under_way and self._next_sequence - next(iter(self._under_way)) >= MAX_SEQUENCE_SPREAD:
            return None
        if self.is_full():
            return 0.0
        return max(0.0, self._runs[0].added_s + self._policy.limits().linger_ms / 1000 - now_s)

    def is_full(self) -> bool:
        """Whether a batch should be sent whatever the time is."""
        limits = self._policy.limits()
        return (
            self._hurried_events > 0
            or len(self._lines) >= limits.max_events
            or self.size_bytes >= limits.max_bytes
        )

    def take(self) -> Batch:
        """The next batch; the outbox must not be empty."""
        lines, size_bytes = self._take_lines()
        runs: list[tuple[Receiver, int, int]] = []
        open_count = len(lines)
        added_s = self._runs[0].added_s
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
        self.size_bytes -= size_bytes
        self._hurried_events = max(0, self._hurried_events - len(lines))
        sequence = self._next_sequence
        self._next_sequence += 1
        self._under_way[sequence] = None
        return Batch(sequence, lines, size_bytes, tuple(runs), added_s)

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

    def finish(self, batch: Batch) -> None:
        """The fate of this batch is known."""
        self._under_way.pop(batch.sequence, None)

    def take_rest(self) -> list[Batch]:
        """Everything that is queued, as batches."""
        batches = []
        while self._lines:
            batches.append(self.take())
        return batches

    def _take_lines(self) -> tuple[list[bytes], int]:
        limits = self._policy.limits()
        queue = self._lines
        lines = [queue.popleft()]
        size_bytes = len(lines[0])
        room = min(limits.max_events, len(queue) + 1)
        while len(lines) < room:
            size_after = size_bytes + len(queue[0])
            if size_after > limits.max_bytes:
                break
            size_bytes = size_after
            lines.append(queue.popleft())
        return lines, size_bytes
