"""The queue of a publisher with an outbox: events are on disk, their receivers in memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from fieldfare.client.batching import Batch, BatchPolicy, EventQueue, Receiver, Runs, _Run
from fieldfare.client.errors import FieldfareError, KeptInOutbox, OutboxError, Refusal
from fieldfare.client.outbox import Outbox
from fieldfare.client.protocol import PublishAnswer
from fieldfare.model import Position

logger = logging.getLogger("fieldfare.client")

REMEMBERED_MS = 7 * 24 * 3600 * 1000
"""Minimum time for which the service detects duplicate requests, in milliseconds; an older one is logged."""


class NoReceiver:
    """The receiver of events without a waiter: from an earlier run, or queued by `store`."""

    def receive(self, start: int, positions: Sequence[Position | None], refused: dict[int, Refusal]) -> None:
        pass

    def fail(self, start: int, count: int, error: FieldfareError) -> None:
        pass


ANONYMOUS = NoReceiver()


class StoredQueue(EventQueue):
    """An `EventQueue` over an `Outbox`.

    Batches that may have been sent before the outbox was opened come first, unchanged.
    """

    def __init__(self, policy: BatchPolicy, producer: str, outbox: Outbox, now_s: float) -> None:
        super().__init__(policy, producer, outbox.max_bytes)
        self._outbox = outbox
        self._closed = False
        for cut in outbox.unanswered():
            age_ms = time.time_ns() // 1_000_000 - cut.cut_ms
            if age_ms > REMEMBERED_MS:
                logger.warning(
                    "the outbox %s holds a request of %d events that is %.0f days old: "
                    "if it reached the service, that may have forgotten it, and its events may be duplicated",
                    outbox.path,
                    len(cut.lines),
                    age_ms / 86_400_000,
                )
            runs = ((ANONYMOUS, 0, len(cut.lines)),)
            self._ready.append(
                Batch(cut.producer, cut.sequence, cut.lines, cut.size_bytes, runs, now_s, is_repeat=True)
            )
        if outbox.waiting_events:
            self._runs.append(_Run(ANONYMOUS, 0, outbox.waiting_events, now_s))
        self.size_bytes = outbox.waiting_bytes
        self._note_change(now_s)

    def has_room(self) -> bool:
        # If refused events fill the outbox, waiting does not help: let `add` raise the error.
        return self._outbox.room_bytes > 0 or self._outbox.is_full_of_refused

    def add(
        self, lines: Sequence[bytes], size_bytes: int, receiver: Receiver, start: int, now_s: float
    ) -> None:
        self._outbox.add(lines, size_bytes)
        self.size_bytes += size_bytes
        if receiver is ANONYMOUS and self._runs and self._runs[-1].receiver is ANONYMOUS:
            self._runs[-1].count += len(lines)
        else:
            self._runs.append(_Run(receiver, start, len(lines), now_s))
        self._note_change(now_s)

    def make_durable(self) -> None:
        self._outbox.sync()

    def finish(self, batch: Batch, fate: PublishAnswer | FieldfareError) -> None:
        super().finish(batch, fate)
        if isinstance(fate, KeptInOutbox):
            return
        try:
            self._settle(batch, fate)
        except OutboxError as error:
            # Nothing is lost: the next opening repeats the batch, and the service detects the duplicate.
            logger.error("the outcome of a batch could not be written to the outbox: %s", error)

    def take_remaining(self) -> Runs:
        self._closed = True
        return super().take_remaining()

    def close(self) -> None:
        self._outbox.close()

    def _settle(self, batch: Batch, fate: PublishAnswer | FieldfareError) -> None:
        if isinstance(fate, PublishAnswer):
            reasons = {index: _describe(refusal) for index, refusal in fate.refused.items()}
            self._outbox.answered(batch.producer, batch.sequence, reasons)
        else:
            reasons = dict.fromkeys(range(len(batch.lines)), str(fate))
            self._outbox.set_aside(batch.producer, batch.sequence, str(fate))
        if reasons:
            logger.warning(
                "the service refused %d events for good; they are kept in the outbox %s: %s",
                len(reasons),
                self._outbox.path,
                next(iter(reasons.values())),
            )

    def _count_open(self) -> int:
        return 0 if self._closed else self._outbox.waiting_events

    def _note_split(self, first: Batch, second: Batch) -> None:
        self._outbox.split(
            second.producer, second.sequence, len(first.lines), first.size_bytes, first.sequence
        )

    def _take_lines(self, sequence: int) -> tuple[list[bytes], int]:
        return self._outbox.cut(*self._limits(), self._producer, sequence)


def _describe(refusal: Refusal) -> str:
    place = f" at {refusal.place}" if refusal.place else ""
    hint = f"\nhint: {refusal.hint}" if refusal.hint else ""
    return f"{refusal.detail}{place}{hint}"
