"""Delayed events: published now, appended to the log at their due time.

    published ──▶ kept: durable, answered ──▶ taken when due ──▶ appended ──▶ done

They are matched when they are appended: the log, the pipeline and deliveries treat them like any other event.
The next start completes what a crash interrupts, see `storage.delayed`. While no event waits, this module
does no work.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from fieldfare.gateway.fair_queue import FairQueue, SharedCapacity
from fieldfare.gateway.problems import WriterClosed
from fieldfare.gateway.publishing.appender import Appender
from fieldfare.storage.delayed import DelayedRecords, DueRecord, StoredDelayed, Waiting
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import NewRecord

logger = logging.getLogger("fieldfare.gateway.publishing")

TAKEN_MAX_BYTES = 8 << 20
"""Approximate maximum bytes of due records appended together; the rest follows in the next round."""

KEPT_BATCH_SIZE = 200
KEPT_MAX_BYTES = 4 << 20
"""Maximum records, and approximate maximum bytes, stored in one transaction; the rest goes to the next one.
Records are picked round robin by space, so that a publisher of one event does not wait for another space's
flood.
"""

LOOK_S = 1.0
"""Maximum interval, in seconds, between looks at the clock while an event is delayed: the clock may be
set.
"""

RETRY_S = 0.5
SEEN_MS = 7 * 86_400_000
"""How long a repeated publish of a kept record is recognized as a duplicate, in milliseconds."""

FORGOTTEN_BATCH_SIZE = 10_000
CANCELLED_BATCH_SIZE = 500


_ToKeep = tuple[NewRecord, int, "asyncio.Future[StoredDelayed]"]


class DelayedFull(Exception):
    """The delay queue has reached its maximum size in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        super().__init__(f"delayed events may take {max_bytes} bytes")


class Delayed:
    """The delayed records of one gateway.

    Parameters
    ----------
    store
        Durable storage of the delayed records.
    appender
        Appends due records; its metrics count the delayed ones.
    is_there
        Returns whether a space still exists (has not been deleted).
    max_bytes
        Maximum bytes of delayed records, all spaces together.
    """

    def __init__(
        self,
        store: DelayedRecords,
        appender: Appender,
        is_there: Callable[[str], bool],
        *,
        max_bytes: int,
    ) -> None:
        self._store = store
        self._appender = appender
        self._metrics = appender.metrics
        self._is_there = is_there
        self._to_keep: FairQueue[_ToKeep] = FairQueue()
        self._keeping: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._next_due_ms = store.next_due_ms()
        self.held = dict(store.held())
        """Number of delayed records and their bytes, by space."""
        self._users = set(self.held)
        """Spaces that have recently published delayed events. `has_kept` asks the store about these only."""
        appender.writer.ask_if_for_later(self.has_kept)
        self._max_bytes = max_bytes
        self._room = SharedCapacity(max_bytes)
        for space, (_, size_bytes) in self.held.items():
            self._room.take(space, size_bytes)
        self._metrics.delayed.set(sum(records for records, _ in self.held.values()))

    def start(self) -> None:
        """Start appending due records, on the running event loop."""
        self._moving = asyncio.get_running_loop().create_task(self._move())

    async def close(self) -> None:
        """Finish storing accepted records, and stop. Records due from now on wait for the next start."""
        tasks = [task for task in (self._moving, self._keeping) if task is not None]
        if self._moving is not None:
            self._moving.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._store.close()

    async def store(self, record: NewRecord, due_ms: int) -> StoredDelayed:
        """Keep a record until its due time. It is durable on return.

        Raise DelayedFull when the queue is full and the space has used up its share: no space may keep others
        from publishing for a month.
        """
        size_bytes = len(record.payload)
        if not self._room.fits(record.space, size_bytes):
            raise DelayedFull(self._max_bytes)
        self._room.take(record.space, size_bytes)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[StoredDelayed] = loop.create_future()
        self._to_keep.add(record.space, (record, due_ms, future))
        if self._keeping is None:
            self._keeping = loop.create_task(self._keep_all())
        # The record is kept even if the client disconnects meanwhile.
        return await asyncio.shield(future)

    async def _keep_all(self) -> None:
        try:
            while self._to_keep:
                some: list[_ToKeep] = []
                left_bytes = KEPT_MAX_BYTES
                while self._to_keep and len(some) < KEPT_BATCH_SIZE and left_bytes > 0:
                    some.append(self._to_keep.next())
                    left_bytes -= len(some[-1][0].payload)
                try:
                    kept = await asyncio.to_thread(
                        self._store.keep, [(record, due_ms) for record, due_ms, _ in some], _now_ms()
                    )
                except Exception as error:
                    for record, _, future in some:
                        self._room.give_back(record.space, len(record.payload))
                        future.set_exception(error)
                        future.exception()  # retrieved: the waiter may have left
                    continue
                for (record, _, future), each in zip(some, kept, strict=True):
                    self._record_sequence(record)
                    if each.duplicate:
                        self._room.give_back(record.space, len(record.payload))
                    else:
                        self._weigh(record.space, 1, len(record.payload))
                        if self._next_due_ms is None or each.due_ms < self._next_due_ms:
                            self._next_due_ms = each.due_ms
                            self._sooner.set()
                    future.set_result(each)
        finally:
            self._keeping = None

    def _record_sequence(self, record: NewRecord) -> None:
        """Tell the writer that this sequence number is kept, so that its followers need not wait for it."""
        if record.producer is not None and record.sequence is not None:
            self._users.add(record.space)
            self._appender.writer.refused(record.space, record.producer, record.sequence)

    async def has_kept(self, space: str, producer: str, sequence: int) -> bool:
        """Return whether a record with this sequence number was kept, as far as the store remembers."""
        return space in self._users and await asyncio.to_thread(
            self._store.has_kept, space, producer, sequence
        )

    def _weigh(self, space: str, records: int, size_bytes: int) -> None:
        before = self.held.pop(space, (0, 0))
        if before[0] + records:
            self.held[space] = (before[0] + records, before[1] + size_bytes)
        if records < 0:  # a kept record's room was taken before it was stored
            self._room.give_back(space, -size_bytes)
        self._metrics.delayed.inc(records)

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of delayed records, by space."""
        return {space: size_bytes for space, (_, size_bytes) in list(self.held.items())}

    async def waiting(self, space: str, after: tuple[int, int], limit: int) -> Sequence[Waiting]:
        """Return a page of a space's delayed records."""
        return await asyncio.to_thread(self._store.waiting, space, after, limit)

    async def cancel(self, space: str, id: int) -> Waiting | None:
        """Cancel and return a delayed record; None if there is none or it is due already."""
        found = await asyncio.to_thread(self._store.cancel, space, id)
        if found is not None:
            self._weigh(space, -1, -found.size_bytes)
        return found

    async def cancel_some(self, space: str) -> int:
        """Cancel a batch of a deleted space's delayed records, and return their number.

        Records that are due already are discarded when they are taken.
        """
        found = await asyncio.to_thread(self._store.cancel_some, space, CANCELLED_BATCH_SIZE)
        if found:
            self._weigh(space, -len(found), -sum(each.size_bytes for each in found))
        else:
            self._users.discard(space)
        return len(found)

    def ids(self, space: str) -> tuple[int, int] | None:
        """Return the lowest and the greatest id of a space's delayed records; None if it has none. Blocks."""
        return self._store.ids(space)

    def forget(self) -> None:
        """Forget old duplicate marks. Blocks: do not call it on the event loop."""
        self._store.forget(_now_ms() - SEEN_MS, FORGOTTEN_BATCH_SIZE)

    async def _move(self) -> None:
        """Append due records until the gateway stops."""
        while True:
            self._sooner.clear()
            due_ms = self._next_due_ms
            if due_ms is None or due_ms > _now_ms():
                left_s = None if due_ms is None else min(LOOK_S, (due_ms - _now_ms()) / 1000)
                await _wait(self._sooner, left_s)
                continue
            try:
                some = await asyncio.to_thread(self._store.take, _now_ms(), TAKEN_MAX_BYTES)
                await self._hand_over(some)
                self._sooner.clear()
                self._next_due_ms = None  # records kept from here on set it themselves
                found_ms = await asyncio.to_thread(self._store.next_due_ms)
                if found_ms is not None:
                    now_known = self._next_due_ms
                    self._next_due_ms = found_ms if now_known is None else min(found_ms, now_known)
            except WriterClosed:
                return
            except Exception as error:
                # Catch all errors: if this task ended, delayed events would wait for the next start.
                is_known = isinstance(error, StorageError | OSError)
                logger.error("events whose time has come wait: %s", error, exc_info=not is_known)
                self._next_due_ms = due_ms
                await asyncio.sleep(RETRY_S)

    async def _hand_over(self, some: Sequence[DueRecord]) -> None:
        """Append taken records, each once: producer and sequence identify duplicates."""
        wanted = [each for each in some if self._is_there(each.record.space)]
        done = [each for each in some if not self._is_there(each.record.space)]
        now_ms = _now_ms()
        appends = [self._append_due(each, now_ms) for each in wanted]
        errors: list[BaseException] = []
        for each, error in zip(wanted, await asyncio.gather(*appends), strict=True):
            if error is None:
                done.append(each)
            else:
                errors.append(error)
        if done:
            await asyncio.to_thread(self._store.done, [each.id for each in done])
            for each in done:
                self._weigh(each.record.space, -1, -len(each.record.payload))
        if errors:
            raise errors[0]

    async def _append_due(self, taken: DueRecord, now_ms: int) -> BaseException | None:
        record = taken.record
        record = NewRecord(
            record.space, record.payload, record.count, record.producer, record.sequence, now_ms
        )
        try:
            await self._appender.append(record, is_due=True)
        except (StorageError, OSError, WriterClosed) as error:
            return error
        return None


async def _wait(event: asyncio.Event, timeout_s: float | None) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
