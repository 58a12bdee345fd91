"""The threads that write events to the log, changes to the registry, and cursors. None waits for another.
    append ──▶ read the stamp ──▶ one transaction of the log ─────▶ answers
    change ──▶ read the log's end ──▶ the registry ──▶ raise the stamp ──▶ answers
    cursors ─▶ one transaction of the registry ───────────────────▶ answers

The *stamp* is the registry's revision as of the last durable change. It is raised before a change is
answered, and read after events have arrived, so events published after the answer are matched with the
change. Events that were acknowledged before the change was requested have a lower stamp. A change reads the
log's end before it gets its revision, so it applies to no record before that end: delivery may begin there.

Each thread serves the spaces round robin (`FairQueue`), so a single event waits for no other space's backlog.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from fieldfare.delivery.delivery import CursorSnapshot
from fieldfare.gateway.fair_queue import NO_SPACE, FairQueue, SharedCapacity
from fieldfare.gateway.in_order import OrderedAppender
from fieldfare.gateway.problems import WriterClosed
from fieldfare.model import Cursor, Offsets
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import Appended, EventLog, EventWriter, NewRecord, OutOfOrder, ends_of
from fieldfare.storage.registry import CursorStore, Registry, SubscriptionHistory

logger = logging.getLogger("fieldfare.gateway.writer")

GROUP_MAX_BYTES = 4 << 20
"""Bytes of a group of appends, which ends with the record that reaches it; the others wait until it is on
disk. Smaller groups take more time in total."""
GROUP_MAX_CHANGES = 64
CHANGES_MAX_S = 0.005
"""`GROUP_MAX_CHANGES` limits the changes answered together, `CHANGES_MAX_S` the seconds until they are
answered: the first waits for the last, but single answers cost more."""

T = TypeVar("T")


class WriterOverloaded(Exception):
    """The queue of events that wait for the log is full."""


@dataclass(frozen=True, slots=True)
class _Append:
    """An append of one record, or of none, which probes whether the log can be written."""

    record: NewRecord | None
    future: asyncio.Future[Any]

    @property
    def size_bytes(self) -> int:
        return len(self.record.payload) if self.record is not None else 0

    @property
    def space(self) -> str:
        return self.record.space if self.record is not None else NO_SPACE


@dataclass(frozen=True, slots=True)
class _Change:
    work: Callable[[Offsets], Any]
    future: asyncio.Future[Any]
    space: str = NO_SPACE
    size_bytes: int = GROUP_MAX_BYTES // GROUP_MAX_CHANGES


@dataclass(frozen=True, slots=True)
class _Save:
    cursors: Sequence[tuple[int, Cursor | CursorSnapshot]]
    future: asyncio.Future[Any]
    space: str = NO_SPACE
    size_bytes: int = 0


_Operation = TypeVar("_Operation", _Append, _Change, _Save)
_Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class _Thread(Generic[_Operation]):
    """A thread and its queue. All waiting operations form a group, of at most about `GROUP_MAX_BYTES`."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"fieldfare-{name}", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Finish queued operations, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    async def submit(self, make: Callable[[asyncio.Future[Any]], _Operation]) -> Any:
        if self._closed or self._loop is None:
            raise WriterClosed
        future = self._loop.create_future()
        self._queue.put(make(future))
        # The work is done even if the client disconnects: only its response is dropped.
        return await future

    def _run(self) -> None:
        waiting: FairQueue[_Operation] = FairQueue()
        stopping = False
        while not stopping or waiting:
            try:
                while not stopping:
                    operation = self._queue.get(block=not waiting)
                    if operation is None:
                        stopping = True
                    else:
                        waiting.add(operation.space, operation)
            except queue.Empty:
                pass
            group: list[_Operation] = []
            size_bytes = 0
            while waiting and size_bytes < GROUP_MAX_BYTES:
                group.append(waiting.next())
                size_bytes += group[-1].size_bytes
            if group:
                self._write(group)

    @abstractmethod
    def _write(self, group: Sequence[_Operation]) -> None:
        """Execute a group of operations, and resolve their futures."""

    def _resolve(self, outcomes: Sequence[_Outcome], then: Callable[[], None] | None = None) -> None:
        """Set the futures' results on the event loop, if it is still running; then call ``then``."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_set_results, outcomes, then)
        except RuntimeError:
            logger.warning("%d results could not be returned, since the gateway had stopped", len(outcomes))


class _Changes(_Thread[_Change]):
    """The thread that changes the registry, one change after the other; a group is answered together."""

    def __init__(self, registry: SubscriptionHistory, log_ends: Callable[[], Offsets]) -> None:
        super().__init__("changes")
        self._registry = registry
        self._log_ends = log_ends
        self.stamp = registry.revision()

    def _write(self, group: Sequence[_Change]) -> None:
        outcomes: list[_Outcome] = []
        begun_s = time.monotonic()
        for change in group:
            try:
                outcomes.append((change.future, change.work(self._log_ends()), None))
            except Exception as error:
                outcomes.append((change.future, None, error))
            if time.monotonic() - begun_s > CHANGES_MAX_S:
                self._answer(outcomes)
                outcomes, begun_s = [], time.monotonic()
        if outcomes:
            self._answer(outcomes)

    def _answer(self, outcomes: list[_Outcome]) -> None:
        try:
            # Even if a change failed: it may be partly done.
            self.stamp = self._registry.revision()
        except StorageError as error:
            logger.exception("the registry's revision could not be read")
            outcomes = [(future, None, error) for future, _, _ in outcomes]
        self._resolve(outcomes)


class _Appends(_Thread[_Append]):
    """The thread that appends to the log: a group of records is one transaction, with one stamp."""

    def __init__(self, log: EventWriter, ends: Offsets, stamp: Callable[[], int]) -> None:
        super().__init__("appends")
        self._log = log
        self._stamp = stamp
        self._lock = threading.Lock()
        self._appending: int | None = None
        self._is_undecided = False
        """Whether the last append failed: until another succeeds, it may be in the log or get there."""
        self.on_append: Callable[[], None] | None = None
        self.ends = ends

    def floor(self) -> int:
        """Return the lowest stamp that a record which is not in the log yet can have."""
        with self._lock:
            return self._stamp() if self._appending is None else self._appending

    async def append(self, record: NewRecord | None) -> Any:
        """Append a record, without regard to its order; with None, only find out whether that is possible."""
        return await self.submit(lambda future: _Append(record, future))

    def _write(self, group: Sequence[_Append]) -> None:
        before = self.ends
        with self._lock:
            stamp = self._stamp()
            if self._appending is None:
                self._appending = stamp
        outcomes = self._append_group(group, stamp)
        if not self._is_undecided:
            self._appending = None
        # One callback for all: waking the event loop costs more than the work there.
        self._resolve(outcomes, self.on_append if self.ends is not before else None)

    def _append_group(self, appends: Sequence[_Append], stamp: int) -> list[_Outcome]:
        wanted = [append for append in appends if append.record is not None]
        records = [_stamped(append.record, stamp) for append in wanted if append.record is not None]
        try:
            places = self._log.append(records)
        except ValueError as error:
            if len(appends) == 1:
                return [(appends[0].future, None, error)]
            # One record over a limit must not fail the others.
            return [outcome for append in appends for outcome in self._append_group([append], stamp)]
        except Exception as error:
            logger.exception("the event log refused an append of %d records", len(records))
            self._is_undecided = True
            return [(append.future, None, error) for append in appends]
        self._is_undecided = False
        self._move_ends(places)
        answered: list[_Outcome] = [
            (append.future, place, None) for append, place in zip(wanted, places, strict=True)
        ]
        return answered + [(append.future, None, None) for append in appends if append.record is None]

    def _move_ends(self, places: Sequence[Appended | OutOfOrder]) -> None:
        ends = list(self.ends)
        for place in places:
            if isinstance(place, Appended) and place.offset >= ends[place.partition]:
                ends[place.partition] = place.offset + 1
        if tuple(ends) != self.ends:
            self.ends = tuple(ends)


class _Saves(_Thread[_Save]):
    """The thread that saves cursors: a group is one transaction, with each subscription's last cursor."""

    def __init__(self, registry: CursorStore) -> None:
        super().__init__("cursors")
        self._registry = registry

    def _write(self, group: Sequence[_Save]) -> None:
        newest: dict[int, Cursor | CursorSnapshot] = {}
        for save in group:
            newest.update(save.cursors)
        errors = self._save(newest)
        outcomes: list[_Outcome] = []
        for save in group:
            failed = next((errors[number] for number, _ in save.cursors if number in errors), None)
            outcomes.append((save.future, None, failed))
        self._resolve(outcomes)

    def _save(self, newest: dict[int, Cursor | CursorSnapshot]) -> dict[int, Exception]:
        """Save cursors; return the errors of those that failed, by subscription number."""
        if not newest:
            return {}
        try:
            self._registry.save_cursors(
                [
                    (number, cursor.cursor() if isinstance(cursor, CursorSnapshot) else cursor)
                    for number, cursor in newest.items()
                ],
                time.time_ns() // 1_000_000,
            )
        except StorageError as error:
            logger.exception("the registry refused %d cursors", len(newest))
            return dict.fromkeys(newest, error)
        except Exception as error:
            if len(newest) == 1:
                logger.exception("the cursor of subscription number %d cannot be saved", next(iter(newest)))
                return dict.fromkeys(newest, error)
            # One that cannot be stored must not fail the others.
            return {
                number: found
                for item in newest.items()
                for number, found in self._save(dict((item,))).items()
            }
        return {}


class Writer:
    """Writes to the log and the registry on threads; await its methods on the event loop that called `start`.

    Parameters
    ----------
    log, registry
        The stores. Nothing else in this process writes to them, except retention and purges.
    queue_max_bytes
        Maximum bytes of waiting events; above it `append` raises WriterOverloaded for spaces that exceed
        their fair share.
    """

    def __init__(self, log: EventLog, registry: Registry, *, queue_max_bytes: int) -> None:
        self._queued = SharedCapacity(queue_max_bytes)
        self._changes = _Changes(registry, lambda: self._appends.ends)
        self._appends = _Appends(log, ends_of(log), lambda: self._changes.stamp)
        self._saves = _Saves(registry)
        self._in_order = OrderedAppender(self._appends.append)
        self._threads = (self._appends, self._changes, self._saves)

    def start(self) -> None:
        """Start the threads; futures belong to the running event loop."""
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        """Finish queued operations, then end the threads."""
        for thread in self._threads:
            await thread.close()

    def call_on_append(self, on_append: Callable[[], None]) -> None:
        """Call a function on the event loop whenever the log has grown."""
        self._appends.on_append = on_append

    @property
    def log_ends(self) -> Offsets:
        """The ends of the log's partitions, as known to this writer, the only one."""
        return self._appends.ends

    @property
    def queued_bytes(self) -> int:
        """Bytes of events that wait to be appended."""
        return self._queued.total

    @property
    def stamp(self) -> int:
        """The registry's revision as of the last durable change."""
        return self._changes.stamp

    def floor(self) -> int:
        """Return the lowest stamp that a record which is not in the log yet can have; for any thread.

        Records of other brokers may have lower ones.
        """
        return self._appends.floor()

    async def append(self, record: NewRecord, *, is_due: bool = False) -> Appended:
        """Append one record, with a stamp read after this was called; it is durable on return.

        A record that follows another may wait briefly for it, and then raises RecordOutOfOrder. A delayed
        record that `is_due` needs no room in the queue, as only few are appended at a time.
        """
        space, size_bytes = record.space, len(record.payload)
        if not (is_due or self._queued.fits(space, size_bytes)):
            raise WriterOverloaded
        self._queued.take(space, size_bytes)
        try:
            return await self._in_order.append(record)
        finally:
            self._queued.give_back(space, size_bytes)

    def ask_if_for_later(self, is_for_later: Callable[[str, str, int], Awaitable[bool]]) -> None:
        """Set the function that returns whether the record of a space, producer and sequence is delayed."""
        self._in_order.is_for_later = is_for_later

    def refused(self, space: str, producer: str, sequence: int) -> None:
        """Fail the followers of a record that was permanently refused, or is delayed."""
        self._in_order.refused(space, producer, sequence)

    async def probe(self) -> None:
        """Wait until the log was found to be writable; raise the error if it is not."""
        await self._appends.append(None)

    async def change(self, work: Callable[[Offsets], T], space: str = NO_SPACE) -> T:
        """Run ``work(ends of the log)`` on the thread of changes; its changes are in effect on return.

        The changes of a space run in the order of the calls.
        """
        result: T = await self._changes.submit(lambda future: _Change(work, future, space))
        return result

    async def save_cursors(self, cursors: Sequence[tuple[int, Cursor | CursorSnapshot]]) -> None:
        """Save cursors; they are durable on return. For a subscription, the cursor submitted last wins.

        A cursor that cannot be stored fails only the calls that submitted it.
        """
        await self._saves.submit(lambda future: _Save(cursors, future))


def _stamped(record: NewRecord, stamp: int) -> NewRecord:
    """Stamp a record; one of another broker keeps its stamp, unless that revision does not exist yet."""
    return replace(record, stamp=stamp if record.origin is None else min(record.stamp, stamp))


def _set_results(outcomes: Sequence[_Outcome], then: Callable[[], None] | None) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
            future.exception()  # retrieved: asyncio warns of no lost error if the client has disconnected
        else:
            future.set_result(result)
    if then is not None:
        then()
