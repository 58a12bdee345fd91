"""What both publishers, sync and async, share: the queue, the books, and what to do after each attempt.

Nothing here waits or starts anything. The sync publisher calls it from its threads, under its lock where it
says so; the async one from its event loop.
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

from fieldfare.client.auto_batching import choose_policy, find_estimates
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
"""`publish_many` encodes and hands over so many at a time, so that sending starts before encoding ends."""

DROPS_TOLD_S = 10.0
"""How often the log says that events are dropped, while they are."""

FIRST_WARNING_S = 10.0
"""When events have waited so long for the service, the log says so; then each time it is twice as long."""

DISK_RETRY_S = 1.0
"""How long after an outbox could not be read or written that is tried again."""


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """What a publisher has done so far, and how it batches now.

    `limits` are the settings that hold at the moment, `estimates` what they were derived from; fixed settings
    have none. `trouble` is the error of the last attempt, and None when that succeeded. `outbox` is None
    without one. `dropped_events` are those that found the queue full and were to be dropped then; they are
    not among the failed ones.
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
    """A publisher's queue and books."""

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
            raise ValueError("an outbox has bounds of its own: outbox=OutboxSettings(path, max_bytes=...)")
        held = queue if queue is not None else QueueSettings()
        self.when_full = held.when_full
        self.space = space
        self.policy = choose_policy(batch)
        self.retry = retry if retry is not None else RetrySettings()
        self.chance = random.Random()
        self.outbox: Outbox | None = None
        self.queue: EventQueue
        # A new id each time, also with an outbox: see there.
        producer = uuid.uuid4().hex
        if outbox is None:
            most = sys.maxsize if held.max_events is None else held.max_events
            self.queue = EventQueue(self.policy, producer, held.max_bytes, most)
        else:
            self.outbox = Outbox(outbox, url, space)
            self.queue = StoredQueue(self.policy, producer, self.outbox, time.monotonic())
            # What is on disk can wait for as long as it takes.
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
        """Whether what is left waits in the outbox for the next opening."""

    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self.in_flight_events and (self.is_parked or not len(self.queue))

    def take(self) -> Batch:
        """The next batch, which is under way from now on."""
        batch = self.queue.take()
        self.in_flight_events += len(batch.lines)
        return batch

    def require_outbox(self) -> Outbox:
        """The outbox; ValueError without one."""
        if self.outbox is None:
            raise ValueError("this publisher has no outbox; make one with client.publisher(outbox=PATH)")
        return self.outbox

    def require_no_outbox(self) -> None:
        """ValueError with an outbox: tables are not kept there."""
        if self.outbox is not None:
            raise ValueError("tables do not go through an outbox; make a publisher without one for them")

    def note_disk_trouble(self, error: OutboxError, is_closed: bool) -> float:
        """The next batch cannot be read or marked; how long to wait before trying again."""
        self.trouble = str(error)
        self.is_parked = is_closed
        logger.error("%s", error)
        return 0.0 if is_closed else DISK_RETRY_S

    def stats(self) -> PublisherStats:
        """Counts since the start, and how it batches now."""
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

    def turn_away(self, now_s: float) -> QueueFull:
        """An event finds the queue full, and is not to wait: what it fails with. Drops are counted."""
        waiting, size_bytes = len(self.queue), self.queue.size_bytes
        error = QueueFull(f"{waiting:,} events of {size_bytes:,} bytes wait already; this one is not sent")
        if self.when_full == "drop":
            self.dropped_events += 1
            if now_s - self._drops_told_s >= DROPS_TOLD_S:
                self._drops_told_s = now_s
                logger.warning("events are dropped, %s so far: %s", f"{self.dropped_events:,}", error)
        return error

    def take_rest(self) -> Runs:
        """Everybody who waits for an event that this publisher will not send any more."""
        if self.outbox is None:
            self.failed_events += len(self.queue)
        return self.queue.take_rest()

    def make_closing_error(self) -> FieldfareError:
        """What the futures of those events are failed with."""
        if self.outbox is None:
            return ClientClosed("the publisher was closed before this event was acknowledged")
        return KeptInOutbox(
            "the publisher was closed before this event was acknowledged; "
            f"it is kept in {self.outbox.path} and will be sent when that is opened again"
        )

    def make_flush_error(self, timeout_s: float | None) -> FlushTimeout:
        """What a flush says that waited as long as it was told to."""
        waiting = len(self.queue) + self.in_flight_events
        return FlushTimeout(f"{waiting:,} events were not acknowledged within {timeout_s:g} s")


class BatchDelivery:
    """One batch on its way through its attempts.

    `fail` and `succeed` resolve futures and are called without a lock, the others with it.

    An attempt that is told that it came *early*, before what it follows, has not failed: it waits until the
    first request under way is another one than it was, and is then sent again at once, behind that.
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
        """Whether the batch's fate is known."""
        return self._is_split or self._fate is not None

    @property
    def is_early(self) -> bool:
        """Whether the last attempt came before what it follows."""
        return self._newest is not None

    def may_go_on(self) -> bool:
        """Whether the first request under way is another one than when this was sent."""
        return self._dispatch.queue.front() != self._front

    def make_durable(self) -> None:
        """Before each attempt: what is to be recognised later must be on the disk. Waits for it; no lock."""
        self._dispatch.queue.make_durable()

    def begin(self, now_s: float) -> ApiCall[PublishAnswer]:
        """The request of the next attempt."""
        queue = self._dispatch.queue
        if self._newest is not None and self._front == self._batch.sequence:
            queue.learn(self._batch, self._newest)
        self._newest, self._front, self._attempted_s = None, queue.front(), now_s
        return following(self._call, queue.follows(self._batch))

    def succeed(self, answer: PublishAnswer) -> None:
        """The service has answered."""
        self._attempts += 1
        self._dispatch.trouble = None
        self._fate = answer
        self._batch.resolve(answer)

    def fail(self, error: Exception, now_s: float, is_stopping: bool) -> float | None:
        """An attempt failed; how long to wait before the next one, or None when there is none."""
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
        if self._dispatch.outbox is None:  # Nobody need look at the futures; the log has it in any case.
            logger.error("%d events are given up: %s", len(self._batch.lines), final)
        self._end(final)
        return None

    def give_up(self) -> None:
        """The publisher is closed while this is under way."""
        self._dispatch.is_parked = self._dispatch.outbox is not None
        self._end(self._dispatch.make_closing_error())

    def close(self, now_s: float) -> None:
        """Write down how it ended."""
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
        # An attempt that came early says nothing of the service.
        began_s = self._attempted_s if self._early_attempts else self._started_s
        attempts = self._attempts - self._early_attempts
        dispatch.queue.report(self._batch, began_s, now_s, attempts, acknowledged)

    def _is_too_large(self, error: Exception) -> bool:
        """Whether the first attempt was refused for its size: then two halves are tried instead.

        A request that may have arrived earlier stays as it is, or its events might come twice.
        """
        is_new = self._attempts - self._early_attempts == 1 and not self._batch.is_repeat
        return is_new and isinstance(error, ApiError) and error.status == 413 and len(self._batch.lines) > 1

    def _split(self) -> None:
        try:
            self._dispatch.queue.split(self._batch)
        except OutboxError as error:
            logger.error("a batch that is too large could not be cut in two: %s", error)
            self._batch.fail(error)
            self._dispatch.queue.finish(self._batch, error)

    def _end(self, error: FieldfareError) -> None:
        self._fate = error
        self._batch.fail(error)

    def _tell(self, error: Exception, wait_s: float, now_s: float) -> None:
        logger.debug("batch %d failed, again in %.2f s: %s", self._batch.sequence, wait_s, error)
        outbox = self._dispatch.outbox
        # Without an outbox the futures tell; events on disk may have no one who waits for them.
        waited_s = now_s - self._started_s
        if outbox is not None and (
            waited_s >= self._warning_s or (self._attempts == 1 and not is_passing(error))
        ):
            self._warning_s = max(FIRST_WARNING_S, 2 * waited_s)
            logger.warning("events wait in the outbox %s: %s", outbox.path, error)


def final_error(error: Exception, retry: RetrySettings, attempts: int) -> FieldfareError:
    """What the events of a request are failed with after its last attempt."""
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
    """Encode all events, or raise InvalidEvent with the index of the one that cannot be."""
    lines: list[bytes] = []
    try:
        lines.extend(map(encode_event, events))
    except InvalidEvent as error:
        raise InvalidEvent(f"event {len(lines)}: {error}") from None
    return lines
