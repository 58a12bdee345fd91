"""The logic that the synchronous and the asyncio publisher share: queue, counters, and retries.

Nothing here waits or starts anything. The synchronous publisher calls it from its threads, holding its lock
where the docstrings say so; the asyncio one calls it from its event loop.
"""

from __future__ import annotations

import logging
import random
import sys
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fieldfare.client.batching import (
    Batch,
    BatchPolicy,
    BatchSettings,
    EventQueue,
    QueueSettings,
    Runs,
)
from fieldfare.client.encoding import Publishable, encode_event
from fieldfare.client.errors import (
    ApiError,
    ClientClosed,
    DeliveryTimeout,
    FieldfareError,
    FlushTimeout,
    InvalidEvent,
    KeptInOutbox,
    OutboxError,
    QueueFull,
)
from fieldfare.client.outbox import Outbox, OutboxSettings, OutboxStats
from fieldfare.client.policies import choose_policy, find_estimates
from fieldfare.client.protocol import ApiCall, PublishAnswer, following, publish_lines
from fieldfare.client.retry import (
    Backoff,
    RetrySettings,
    is_about_the_moment,
    is_passing,
    newest_in_log,
)
from fieldfare.client.stored_queue import StoredQueue
from fieldfare.publishing.requests import RequestEstimates

logger = logging.getLogger("fieldfare.client")

HAND_OVER_EVENTS = 500
"""Events that `publish_many` queues at a time; the rest waits until the queue has room."""

DROPS_TOLD_S = 10.0
"""Minimum interval, in seconds, between log warnings about dropped events."""

FIRST_WARNING_S = 10.0
"""Seconds that events in an outbox wait for the service before the log warns; then at each doubling."""

DISK_RETRY_S = 1.0
"""Wait before an outbox that could not be read or written is tried again, in seconds."""


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """A publisher's counters since its creation, and its current batching limits.

    `limits` are the current limits, `estimates` the measurements that they are derived from (None for fixed
    settings). `trouble` is the error of the last attempt, None if that succeeded. `outbox` is None without
    an outbox. `dropped_events` counts events dropped because the queue was full; `failed_events` does not
    include them.
    """

    acknowledged_events: int
    failed_events: int
    queued_events: int
    in_flight_events: int
    requests: int
    repeated_requests: int
    limits: BatchSettings
    estimates: RequestEstimates | None
    trouble: str | None = None
    outbox: OutboxStats | None = None
    dropped_events: int = 0


class PublisherQueue:
    """A publisher's queue and counters."""

    def __init__(
        self,
        url: str,
        space: str,
        batch: BatchPolicy | Literal["auto"],
        retry: RetrySettings | None,
        outbox: str | Path | OutboxSettings | None,
        queue: QueueSettings | None,
    ) -> None:
        if outbox is not None and queue is not None:
            raise ValueError(
                "a publisher with an outbox has no queue: use outbox=OutboxSettings(path, max_bytes=...)"
            )
        held = queue if queue is not None else QueueSettings()
        self.when_full = held.when_full
        self.space = space
        self.policy = choose_policy(batch)
        self.retry = retry if retry is not None else RetrySettings()
        self.chance = random.Random()
        self.outbox: Outbox | None = None
        self.queue: EventQueue
        # A new id each time, also with an outbox (the docstring of the module outbox says why).
        producer = uuid.uuid4().hex
        if outbox is None:
            most = sys.maxsize if held.max_events is None else held.max_events
            self.queue = EventQueue(self.policy, producer, held.max_bytes, most)
        else:
            self.outbox = Outbox(outbox, url, space)
            self.queue = StoredQueue(self.policy, producer, self.outbox, time.monotonic())
            # Events on disk need no deadline.
            self.retry = replace(self.retry, deadline_s=float("inf"))
        self.acknowledged_events = 0
        self.failed_events = 0
        self.in_flight_events = 0
        self.requests = 0
        self.repeated_requests = 0
        self.dropped_events = 0
        self._drops_told_s = float("-inf")
        self.trouble: str | None = None
        self.is_parked = False
        """Whether the remaining events stay in the outbox until it is opened again."""

    def is_idle(self) -> bool:
        """Whether no events are in flight, and none are left to send now."""
        return not self.in_flight_events and (self.is_parked or not len(self.queue))

    def take(self) -> Batch:
        """Take the next batch from the queue and count it as in flight."""
        batch = self.queue.take()
        self.in_flight_events += len(batch.lines)
        return batch

    def require_outbox(self) -> Outbox:
        """Return the outbox; ValueError without one."""
        if self.outbox is None:
            raise ValueError("this publisher has no outbox: create one with client.publisher(outbox=PATH)")
        return self.outbox

    def require_no_outbox(self) -> None:
        """Raise ValueError with an outbox, which cannot store tables."""
        if self.outbox is not None:
            raise ValueError("an outbox cannot store tables: publish them with a publisher without an outbox")

    def note_disk_trouble(self, error: OutboxError, is_closed: bool) -> float:
        """Note that the next batch cannot be read or written; return the seconds until the next try."""
        self.trouble = str(error)
        self.is_parked = is_closed
        logger.error("%s", error)
        return 0.0 if is_closed else DISK_RETRY_S

    def stats(self) -> PublisherStats:
        """Return the publisher's counters since its creation and its current batching limits."""
        return PublisherStats(
            self.acknowledged_events,
            self.failed_events,
            len(self.queue),
            self.in_flight_events,
            self.requests,
            self.repeated_requests,
            self.policy.limits(),
            find_estimates(self.policy),
            self.trouble,
            None if self.outbox is None else self.outbox.stats(),
            self.dropped_events,
        )

    def refuse_when_full(self, now_s: float) -> QueueFull:
        """Return the error of an event that finds the queue full and must not wait; count it if dropped."""
        waiting, size_bytes = len(self.queue), self.queue.size_bytes
        error = QueueFull(
            f"the queue is full ({waiting:,} events, {size_bytes:,} bytes); this event is not sent"
        )
        if self.when_full == "drop":
            self.dropped_events += 1
            if now_s - self._drops_told_s >= DROPS_TOLD_S:
                self._drops_told_s = now_s
                logger.warning("events dropped since the start: %s; %s", f"{self.dropped_events:,}", error)
        return error

    def take_remaining(self) -> Runs:
        """Empty the queue and return the receivers of its events, which will not be sent."""
        if self.outbox is None:
            self.failed_events += len(self.queue)
        return self.queue.take_remaining()

    def make_closing_error(self) -> FieldfareError:
        """Return the error for events that were not acknowledged when the publisher was closed."""
        if self.outbox is None:
            return ClientClosed("the publisher was closed before this event was acknowledged")
        return KeptInOutbox(
            "the publisher was closed before this event was acknowledged; "
            f"it is kept in {self.outbox.path} and will be sent when that is opened again"
        )

    def make_flush_error(self, timeout_s: float | None) -> FlushTimeout:
        """Return the error of a flush that timed out."""
        waiting = len(self.queue) + self.in_flight_events
        return FlushTimeout(f"{waiting:,} events were not acknowledged within {timeout_s:g} s")


class BatchDelivery:
    """The attempts to send one batch.

    Call `fail`, `succeed` and `make_durable` without the publisher's lock, the other methods with it.

    An attempt that arrived *early*, before the request that it follows, has not failed: it waits until the
    oldest request in flight has changed, and is then sent again at once.
    """

    def __init__(self, dispatch: PublisherQueue, batch: Batch, now_s: float) -> None:
        self._dispatch = dispatch
        self._batch = batch
        self._started_s = self._attempted_s = now_s
        self._passes = is_passing if dispatch.outbox is None else is_about_the_moment
        self._backoff = Backoff(dispatch.retry, now_s, dispatch.chance, self._passes)
        self._warning_s = FIRST_WARNING_S
        self._attempts = 0
        self._early_attempts = 0
        self._newest: int | None = None
        self._front: int | None = None
        self._is_split = False
        self._fate: PublishAnswer | FieldfareError | None = None
        self._call = publish_lines(dispatch.space, batch.lines, batch.producer, batch.sequence)

    @property
    def is_over(self) -> bool:
        """Whether the batch's outcome is known, or it was too large and will be split."""
        return self._is_split or self._fate is not None

    @property
    def is_early(self) -> bool:
        """Whether the last attempt arrived before the request that it follows."""
        return self._newest is not None

    def has_progressed(self) -> bool:
        """Whether the oldest request in flight has changed since the last attempt."""
        return self._dispatch.queue.front() != self._front

    def make_durable(self) -> None:
        """Sync the batch's boundaries to disk before an attempt, so that a repeat is recognised; blocks."""
        self._dispatch.queue.make_durable()

    def begin(self, now_s: float) -> ApiCall[PublishAnswer]:
        """Begin the next attempt and return its request."""
        queue = self._dispatch.queue
        if self._newest is not None and self._front == self._batch.sequence:
            queue.learn(self._batch, self._newest)
        self._newest, self._front, self._attempted_s = None, queue.front(), now_s
        return following(self._call, queue.follows(self._batch))

    def succeed(self, answer: PublishAnswer) -> None:
        """Note the service's answer and resolve the futures."""
        self._attempts += 1
        self._dispatch.trouble = None
        self._fate = answer
        self._batch.resolve(answer)

    def fail(self, error: Exception, now_s: float, is_stopping: bool) -> float | None:
        """Note a failed attempt; return the seconds until the next one, or None if there is none."""
        self._attempts += 1
        self._newest = newest_in_log(error)
        if self._newest is not None:
            self._early_attempts += 1
        else:
            self._dispatch.trouble = str(error)
        if self._is_too_large(error):
            self._is_split = True
            return None
        wait_s = self._backoff.next_wait_s(error, now_s)
        if wait_s is not None and not is_stopping:
            self._tell(error, wait_s, now_s)
            return wait_s
        if self._dispatch.outbox is not None and self._passes(error):
            self.give_up()
            return None
        if wait_s is not None:
            final = self._dispatch.make_closing_error()
        else:
            final = final_error(error, self._dispatch.retry, self._attempts)
        if self._dispatch.outbox is None:  # Logged as well, as a program may ignore the futures.
            count = len(self._batch.lines)
            logger.error("publishing %d %s failed: %s", count, "event" if count == 1 else "events", final)
        self._end(final)
        return None

    def give_up(self) -> None:
        """Fail the batch because the publisher is closed while it is in flight."""
        self._dispatch.is_parked = self._dispatch.outbox is not None
        self._end(self._dispatch.make_closing_error())

    def close(self, now_s: float) -> None:
        """Update the counters and the queue with the outcome."""
        dispatch, count = self._dispatch, len(self._batch.lines)
        dispatch.in_flight_events -= count
        dispatch.requests += self._attempts
        dispatch.repeated_requests += max(0, self._attempts - 1)
        if self._is_split:
            self._split()
            return
        fate = self._fate
        assert fate is not None
        dispatch.queue.finish(self._batch, fate)
        acknowledged = isinstance(fate, PublishAnswer)
        if isinstance(fate, PublishAnswer):
            dispatch.acknowledged_events += count - len(fate.refused)
            dispatch.failed_events += len(fate.refused)
        elif not isinstance(fate, KeptInOutbox):
            dispatch.failed_events += count
        # Early attempts say nothing about the service's speed.
        began_s = self._attempted_s if self._early_attempts else self._started_s
        attempts = self._attempts - self._early_attempts
        dispatch.queue.report(self._batch, began_s, now_s, attempts, acknowledged)

    def _is_too_large(self, error: Exception) -> bool:
        """Whether the first attempt was refused for its size, so that the batch is split.

        A request that may have arrived earlier is not split, or its events could be duplicated.
        """
        is_new = self._attempts - self._early_attempts == 1 and not self._batch.is_repeat
        return is_new and isinstance(error, ApiError) and error.status == 413 and len(self._batch.lines) > 1

    def _split(self) -> None:
        try:
            self._dispatch.queue.split(self._batch)
        except OutboxError as error:
            logger.error("a batch that is too large could not be split in the outbox: %s", error)
            self._batch.fail(error)
            self._dispatch.queue.finish(self._batch, error)

    def _end(self, error: FieldfareError) -> None:
        self._fate = error
        self._batch.fail(error)

    def _tell(self, error: Exception, wait_s: float, now_s: float) -> None:
        logger.debug("batch %d failed, retry in %.2f s: %s", self._batch.sequence, wait_s, error)
        outbox = self._dispatch.outbox
        # Without an outbox the futures report failures; events on disk may have no waiter.
        waited_s = now_s - self._started_s
        if outbox is not None and (
            waited_s >= self._warning_s or (self._attempts == 1 and not is_passing(error))
        ):
            self._warning_s = max(FIRST_WARNING_S, 2 * waited_s)
            logger.warning("events wait in the outbox %s: %s", outbox.path, error)


def final_error(error: Exception, retry: RetrySettings, attempts: int) -> FieldfareError:
    """Return the error for the events of a request whose last attempt failed."""
    if is_passing(error):
        timeout = DeliveryTimeout(
            f"not acknowledged within {retry.deadline_s:g} s ({attempts} attempts); the last one: {error}"
        )
        timeout.__cause__ = error
        return timeout
    if isinstance(error, FieldfareError):
        return error
    wrapped = FieldfareError(f"publishing failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def encode_events(events: Iterable[Publishable]) -> list[bytes]:
    """Encode all events; InvalidEvent names the index of the first that cannot be encoded."""
    lines: list[bytes] = []
    try:
        lines.extend(map(encode_event, events))
    except InvalidEvent as error:
        raise InvalidEvent(f"event {len(lines)}: {error}") from None
    return lines
