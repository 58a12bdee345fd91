"""Events that are published now and appended to the log when their time has come.

    published ──▶ kept: durable, answered ──▶ taken when due ──▶ appended ──▶ done

They are matched as of when they are appended: for the log, the pipeline and deliveries they are events like
any other, and nothing there knows of them. What a kill leaves half done is gone on with at the next start,
see `storage.delayed`. While nothing waits, nothing is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from fieldfare.delivery.keys import place_of
from fieldfare.gateway.delivery.records import RecordCache
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.turns import Turns
from fieldfare.gateway.writer import Writer, WriterClosed
from fieldfare.storage.delayed import DelayedRecords, Kept, Taken, Waiting
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import NewRecord

logger = logging.getLogger("fieldfare.gateway.publishing")

TAKEN_MAX_BYTES = 8 << 20
"""Records of about so many bytes are handed over to the log together."""

KEPT_AT_ONCE = 200
KEPT_MAX_BYTES = 4 << 20
"""So many that wait for the disk, or about so many bytes of them, are kept in one transaction: each space's
in its turn, so that who publishes one event waits for nobody's flood."""

LOOK_S = 1.0
"""So often the time of day is looked at, however far away the next is due: somebody may set it."""

RETRY_S = 0.5
SEEN_MS = 7 * 86_400_000
"""So long a repeat of what was kept is taken for one."""

FORGOTTEN_AT_ONCE = 10_000
CANCELLED_AT_ONCE = 500


_ToKeep = tuple[NewRecord, int, "asyncio.Future[Kept]"]


class DelayedFull(Exception):
    """As many bytes wait for their time as may."""


class Delayed:
    """The records of one gateway that wait for their time.

    Parameters
    ----------
    store
        Keeps them.
    writer, records, metrics
        Take over what is due.
    is_there
        Whether a space has not been deleted.
    max_bytes
        How much may wait.
    """

    def __init__(
        self,
        store: DelayedRecords,
        writer: Writer,
        records: RecordCache,
        metrics: Metrics,
        is_there: Callable[[str], bool],
        *,
        max_bytes: int,
    ) -> None:
        self._store = store
        self._writer = writer
        self._records = records
        self._metrics = metrics
        self._is_there = is_there
        self._max_bytes = max_bytes
        self._to_keep: Turns[_ToKeep] = Turns()
        self._keeping: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._next_due_ms = store.next_due_ms()
        self._on_way_bytes = 0
        self.held = dict(store.held())
        """How many records of each space wait, and how many bytes."""
        self._users = set(self.held)
        """The spaces that have lately published for later: of no other is it asked what it has."""
        writer.ask_if_for_later(self.has_kept)
        self._held_bytes = sum(size_bytes for _, size_bytes in self.held.values())
        metrics.delayed.set(sum(records for records, _ in self.held.values()))

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._moving = asyncio.get_running_loop().create_task(self._move())

    async def close(self) -> None:
        """Keep what is on its way; what is due from now on waits for the next start."""
        tasks = [task for task in (self._moving, self._keeping) if task is not None]
        if self._moving is not None:
            self._moving.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._store.close()

    async def keep(self, record: NewRecord, due_ms: int) -> Kept:
        """Keep a record until its time; durable on return.

        DelayedFull when too much waits, and of this space as much as its share: nobody may keep others from
        publishing for a month.
        """
        size_bytes = len(record.payload)
        new_bytes = self._on_way_bytes + size_bytes
        if self._held_bytes + new_bytes > self._max_bytes:
            own = self.held.get(record.space)
            own_bytes, spaces = (0, len(self.held) + 1) if own is None else (own[1], len(self.held))
            if own_bytes + new_bytes > self._max_bytes // spaces:
                raise DelayedFull
        self._on_way_bytes += size_bytes
        try:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Kept] = loop.create_future()
            self._to_keep.add(record.space, (record, due_ms, future))
            if self._keeping is None:
                self._keeping = loop.create_task(self._keep_all())
            # It is kept even if the client goes away meanwhile.
            return await asyncio.shield(future)
        finally:
            self._on_way_bytes -= size_bytes

    async def _keep_all(self) -> None:
        try:
            while self._to_keep:
                some: list[_ToKeep] = []
                left_bytes = KEPT_MAX_BYTES
                while self._to_keep and len(some) < KEPT_AT_ONCE and left_bytes > 0:
                    some.append(self._to_keep.next())
                    left_bytes -= len(some[-1][0].payload)
                try:
                    kept = await asyncio.to_thread(
                        self._store.keep, [(record, due_ms) for record, due_ms, _ in some], _now_ms()
                    )
                except Exception as error:
                    for _, _, future in some:
                        future.set_exception(error)
                        future.exception()  # seen: whoever waited may have gone
                    continue
                for (record, _, future), each in zip(some, kept, strict=True):
                    self._note(record)
                    if not each.duplicate:
                        self._weigh(record.space, 1, len(record.payload))
                        if self._next_due_ms is None or each.due_ms < self._next_due_ms:
                            self._next_due_ms = each.due_ms
                            self._sooner.set()
                    future.set_result(each)
        finally:
            self._keeping = None

    def _note(self, record: NewRecord) -> None:
        """One is kept: who has come before it, and would follow it, need not wait."""
        if record.producer is not None and record.sequence is not None:
            self._users.add(record.space)
            self._writer.refused(record.space, record.producer, record.sequence)

    async def has_kept(self, space: str, producer: str, sequence: int) -> bool:
        """Whether a record of this number was kept, as far as that is remembered."""
        return space in self._users and await asyncio.to_thread(
            self._store.has_kept, space, producer, sequence
        )

    def _weigh(self, space: str, records: int, size_bytes: int) -> None:
        before = self.held.pop(space, (0, 0))
        if before[0] + records:
            self.held[space] = (before[0] + records, before[1] + size_bytes)
        self._held_bytes += size_bytes
        self._metrics.delayed.inc(records)

    def stored_bytes(self) -> dict[str, int]:
        """How many bytes of each space wait."""
        return {space: size_bytes for space, (_, size_bytes) in list(self.held.items())}

    async def waiting(self, space: str, after: tuple[int, int], limit: int) -> Sequence[Waiting]:
        """A page of what waits in a space."""
        return await asyncio.to_thread(self._store.waiting, space, after, limit)

    async def cancel(self, space: str, id: int) -> Waiting | None:
        """Forget one; None when there is none, or its time has come."""
        found = await asyncio.to_thread(self._store.cancel, space, id)
        if found is not None:
            self._weigh(space, -1, -found.size_bytes)
        return found

    async def cancel_some(self, space: str) -> int:
        """Forget some of a space that is gone, how many; those that are due now go by themselves."""
        found = await asyncio.to_thread(self._store.cancel_some, space, CANCELLED_AT_ONCE)
        if found:
            self._weigh(space, -len(found), -sum(each.size_bytes for each in found))
        else:
            self._users.discard(space)
        return len(found)

    def forget(self) -> None:
        """Forget old marks of repeats; not to be called on the event loop."""
        self._store.forget(_now_ms() - SEEN_MS, FORGOTTEN_AT_ONCE)

    async def _move(self) -> None:
        """Append what is due, for as long as the gateway runs."""
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
                self._next_due_ms = None  # what is kept from here on says itself when it is due
                found_ms = await asyncio.to_thread(self._store.next_due_ms)
                if found_ms is not None:
                    now_known = self._next_due_ms
                    self._next_due_ms = found_ms if now_known is None else min(found_ms, now_known)
            except WriterClosed:
                return
            except Exception as error:
                # Whatever it is: were this to end, nothing would come any more until the next start.
                is_known = isinstance(error, StorageError | OSError)
                logger.error("events whose time has come wait: %s", error, exc_info=not is_known)
                self._next_due_ms = due_ms
                await asyncio.sleep(RETRY_S)

    async def _hand_over(self, some: Sequence[Taken]) -> None:
        """Append records that are taken, each once: a repeat is known by producer and sequence."""
        wanted = [each for each in some if self._is_there(each.record.space)]
        done = [each for each in some if not self._is_there(each.record.space)]
        now_ms = _now_ms()
        appends = [self._append(each, now_ms) for each in wanted]
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

    async def _append(self, taken: Taken, now_ms: int) -> BaseException | None:
        record = taken.record
        record = NewRecord(
            record.space, record.payload, record.count, record.producer, record.sequence, now_ms
        )
        try:
            place = await self._writer.append(record, is_due=True)
        except (StorageError, OSError, WriterClosed) as error:
            return error
        if not place.duplicate:
            self._metrics.appended(record.count, len(record.payload))
            key = place_of(place.partition, place.offset)
            self._records.put(key, record.payload, now_ms)
        return None


async def _wait(event: asyncio.Event, timeout_s: float | None) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        pass


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
