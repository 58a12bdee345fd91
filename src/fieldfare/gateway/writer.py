"""The threads that write: events to the log, changes to the registry, cursors. None waits for another.

    append ──▶ read the stamp ──▶ one transaction of the log ─────▶ answers
    change ──▶ read the log's end ──▶ the registry ──▶ raise the stamp ──▶ answers
    cursors ─▶ one transaction of the registry ───────────────────▶ answers

The *stamp* is the registry's revision as of the last change that is durable. It is raised before a change is
answered and read after the events have arrived, so what is published after the answer meets the change. What
was acknowledged before a change was asked for has a lower stamp. And a change reads the log's end before it
gets its revision, so no record before that end meets it: delivery may begin there.

What waits for a thread has its turn by space (`Turns`): who sends one event waits for no backlog of another.
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

from fieldfare.delivery.delivery import Mark
from fieldfare.gateway.in_order import KeptInOrder
from fieldfare.gateway.turns import NOBODY, SharedRoom, Turns
from fieldfare.model import Cursor, Offsets
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import Appended, EventLog, EventWriter, NewRecord, OutOfOrder, ends_of
from fieldfare.storage.registry import Registry

logger = logging.getLogger("fieldfare.gateway.writer")

GROUP_MAX_BYTES = 4 << 20
"""What comes meanwhile waits for a group to be on disk; smaller ones take more time together."""
GROUP_MAX_CHANGES = 64
CHANGES_MAX_S = 0.005
"""So many are answered together, or as many as are made in this time: the first waits for the last, and each
answer alone costs more."""

T = TypeVar("T")


class WriterOverloaded(Exception):
    """More bytes of events wait for the log than may."""


class WriterClosed(Exception):
    """The gateway is stopping and takes no more work."""


@dataclass(frozen=True, slots=True)
class _Append:
    """Of one record, or of none: that asks whether the log can be written."""

    record: NewRecord | None
    future: asyncio.Future[Any]

    @property
    def size_bytes(self) -> int:
        return len(self.record.payload) if self.record is not None else 0

    @property
    def space(self) -> str:
        return self.record.space if self.record is not None else NOBODY


@dataclass(frozen=True, slots=True)
class _Change:
    work: Callable[[Offsets], Any]
    future: asyncio.Future[Any]
    space: str = NOBODY
    size_bytes: int = GROUP_MAX_BYTES // GROUP_MAX_CHANGES


@dataclass(frozen=True, slots=True)
class _Save:
    cursors: Sequence[tuple[int, Cursor | Mark]]
    future: asyncio.Future[Any]
    space: str = NOBODY
    size_bytes: int = 0


_Operation = TypeVar("_Operation", _Append, _Change, _Save)
_Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class _Thread(Generic[_Operation]):
    """A thread and its queue. What waits when it is free is one group, which ends at so many bytes."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"fieldfare-{name}", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Finish what is queued, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    async def submit(self, make: Callable[[asyncio.Future[Any]], _Operation]) -> Any:
        if self._closed or self._loop is None:
            raise WriterClosed
        future = self._loop.create_future()
        self._queue.put(make(future))
        # The work is done even if the client goes away meanwhile: only its answer is dropped.
        return await future

    def _run(self) -> None:
        waiting: Turns[_Operation] = Turns()
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
        """Do a group's work, and resolve its futures."""

    def _resolve(self, outcomes: Sequence[_Outcome], then: Callable[[], None] | None = None) -> None:
        """Tell the event loop, which may have ended."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_set_results, outcomes, then)
        except RuntimeError:
            logger.warning("%d answers came after the gateway had ended", len(outcomes))


class _Changes(_Thread[_Change]):
    """Changes of the registry, one after the other; those of a group are answered together."""

    def __init__(self, registry: Registry, log_ends: Callable[[], Offsets]) -> None:
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
            # Also when one failed: it may have come half way.
            self.stamp = self._registry.revision()
        except StorageError as error:
            logger.exception("the registry's revision could not be read")
            outcomes = [(future, None, error) for future, _, _ in outcomes]
        self._resolve(outcomes)


class _Appends(_Thread[_Append]):
    """Appends to the log: all records that wait go in one transaction, with one stamp."""

    def __init__(self, log: EventWriter, ends: Offsets, stamp: Callable[[], int]) -> None:
        super().__init__("appends")
        self._log = log
        self._stamp = stamp
        self._lock = threading.Lock()
        self._appending: int | None = None
        self._is_undecided = False
        """Whether the last append failed: it may be in the log, or come there, until another succeeds."""
        self.on_append: Callable[[], None] | None = None
        self.ends = ends

    def floor(self) -> int:
        """A stamp below which no record will be appended that is not in the log yet."""
        with self._lock:
            return self._stamp() if self._appending is None else self._appending

    def _write(self, group: Sequence[_Append]) -> None:
        before = self.ends
        with self._lock:
            stamp = self._stamp()
            if self._appending is None:
                self._appending = stamp
        outcomes = self._append(group, stamp)
        if not self._is_undecided:
            self._appending = None
        # Heard together: to wake the event loop costs more than what is then done.
        self._resolve(outcomes, self.on_append if self.ends is not before else None)

    def _append(self, appends: Sequence[_Append], stamp: int) -> list[_Outcome]:
        wanted = [append for append in appends if append.record is not None]
        records = [replace(append.record, stamp=stamp) for append in wanted if append.record is not None]
        try:
            places = self._log.append(records)
        except ValueError as error:
            if len(appends) == 1:
                return [(appends[0].future, None, error)]
            # One record that breaks a limit must not take its neighbours with it.
            return [outcome for append in appends for outcome in self._append([append], stamp)]
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
    """Cursors: all that wait are saved in one transaction, of one subscription's the last."""

    def __init__(self, registry: Registry) -> None:
        super().__init__("cursors")
        self._registry = registry

    def _write(self, group: Sequence[_Save]) -> None:
        newest: dict[int, Cursor | Mark] = {}
        for save in group:
            newest.update(save.cursors)
        errors = self._save(newest)
        outcomes: list[_Outcome] = []
        for save in group:
            failed = next((errors[number] for number, _ in save.cursors if number in errors), None)
            outcomes.append((save.future, None, failed))
        self._resolve(outcomes)

    def _save(self, newest: dict[int, Cursor | Mark]) -> dict[int, Exception]:
        """Save them; those that could not be, by number, each with its error."""
        if not newest:
            return {}
        try:
            self._registry.save_cursors(
                [
                    (number, cursor.cursor() if isinstance(cursor, Mark) else cursor)
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
            # One that cannot be stored must not take its neighbours with it.
            return {
                number: found
                for item in newest.items()
                for number, found in self._save(dict((item,))).items()
            }
        return {}


class Writer:
    """Queues writes for their threads; every verb is awaited on the event loop that `start` was called on.

    Parameters
    ----------
    log, registry
        Where to write. Nothing else in this process writes to them, but for retention and purges.
    queue_max_bytes
        Bytes of events that may wait; `append` raises WriterOverloaded above it, for spaces that have their
        share of it and more.
    """

    def __init__(self, log: EventLog, registry: Registry, *, queue_max_bytes: int) -> None:
        self._queued = SharedRoom(queue_max_bytes)
        self._changes = _Changes(registry, lambda: self._appends.ends)
        self._appends = _Appends(log, ends_of(log), lambda: self._changes.stamp)
        self._saves = _Saves(registry)
        self._in_order = KeptInOrder(self._append)
        self._threads = (self._appends, self._changes, self._saves)

    def start(self) -> None:
        """Start the threads; futures belong to the running event loop."""
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        """Finish what is queued, then end the threads."""
        for thread in self._threads:
            await thread.close()

    def call_on_append(self, on_append: Callable[[], None]) -> None:
        """Have this called on the event loop whenever the log has grown."""
        self._appends.on_append = on_append

    @property
    def log_ends(self) -> Offsets:
        """The ends of the log's partitions, as far as this writer, which is the only one, has moved them."""
        return self._appends.ends

    @property
    def queued_bytes(self) -> int:
        """Bytes of events that wait for the disk."""
        return self._queued.total

    def floor(self) -> int:
        """A stamp below which no record will be appended that is not in the log yet; from any thread."""
        return self._appends.floor()

    async def append(self, record: NewRecord, *, is_due: bool = False) -> Appended:
        """Append one record, with a stamp read after this was called; durable on return.

        One that follows another may wait for that for a moment; then it is RecordOutOfOrder. What was kept
        and `is_due` needs no room: few are handed over at a time, and others wait behind them.
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
        """Have this say of a space, a producer and a sequence whether that was published for later."""
        self._in_order.is_for_later = is_for_later

    def refused(self, space: str, producer: str, sequence: int) -> None:
        """A request of this number was refused for good, or is kept for later: nobody need wait for it."""
        self._in_order.refused(space, producer, sequence)

    async def _append(self, record: NewRecord) -> Appended | OutOfOrder:
        place: Appended | OutOfOrder = await self._appends.submit(lambda future: _Append(record, future))
        return place

    async def probe(self) -> None:
        """Return when the log can be written."""
        await self._appends.submit(lambda future: _Append(None, future))

    async def change(self, work: Callable[[Offsets], T], space: str = NOBODY) -> T:
        """Run ``work(ends of the log)`` on the thread of changes; what it changed counts on return.

        In the order in which they come for one space.
        """
        result: T = await self._changes.submit(lambda future: _Change(work, future, space))
        return result

    async def save_cursors(self, cursors: Sequence[tuple[int, Cursor | Mark]]) -> None:
        """Save cursors; durable on return. Of one subscription's, the one submitted last stays.

        One that cannot be stored is an error to those who submitted it, and to nobody else.
        """
        await self._saves.submit(lambda future: _Save(cursors, future))


def _set_results(outcomes: Sequence[_Outcome], then: Callable[[], None] | None) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
            future.exception()  # seen: a client that went away leaves no warning behind
        else:
            future.set_result(result)
    if then is not None:
        then()
