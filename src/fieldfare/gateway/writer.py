"""The one thread that writes: events to the log, changes to the registry, cursors.

Whatever waits when the thread is free is done as one group: all appends in one transaction, then the
registry's changes inside one fence of the log (so each has an exact place between the records), then
the cursors in one transaction. A group ends at so many changes, for those who publish wait while the log is
fenced. A request's future is resolved only when its work is durable.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fieldfare.delivery.delivery import Mark
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import Appended, EventLog, NewRecord
from fieldfare.storage.registry import Cursor, Registry

logger = logging.getLogger("fieldfare.gateway.writer")

GROUP_MAX_BYTES = 32 << 20
GROUP_MAX_CHANGES = 64

T = TypeVar("T")


class WriterOverloaded(Exception):
    """More bytes of events wait for the log than may."""


class WriterClosed(Exception):
    """The gateway is stopping and takes no more work."""


@dataclass(frozen=True, slots=True)
class _Append:
    record: NewRecord
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Change:
    work: Callable[[int], Any]
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Save:
    cursors: Sequence[tuple[int, Cursor | Mark]]
    future: asyncio.Future[Any]


_Operation = _Append | _Change | _Save
_Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Writer:
    """Queues writes for its thread; every verb is awaited on the event loop that `start` was called on.

    Parameters
    ----------
    log, registry
        Where to write. Nothing else in this process writes to them.
    queue_max_bytes
        Bytes of events that may wait; `append` raises WriterOverloaded above it.
    """

    def __init__(
        self,
        log: EventLog,
        registry: Registry,
        *,
        queue_max_bytes: int,
    ) -> None:
        self._log = log
        self._registry = registry
        self._queue_max_bytes = queue_max_bytes
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._on_append: Callable[[], None] | None = None
        self.log_end = log.end()
        """The log's end, as far as this writer, which is the only one, has moved it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="fieldfare-writer", daemon=True)

    def start(self) -> None:
        """Start the thread; futures belong to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Finish what is queued, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def call_on_append(self, on_append: Callable[[], None]) -> None:
        """Have this called on the event loop whenever the log has grown."""
        self._on_append = on_append

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    @property
    def queued_bytes(self) -> int:
        """Bytes of events that wait for the disk."""
        return self._queued_bytes

    async def append(self, record: NewRecord) -> Appended:
        """Append one record; durable on return."""
        if self._queued_bytes + len(record.payload) > self._queue_max_bytes:
            raise WriterOverloaded
        self._queued_bytes += len(record.payload)
        try:
            appended: Appended = await self._submit(lambda future: _Append(record, future))
            return appended
        finally:
            self._queued_bytes -= len(record.payload)

    async def change(self, work: Callable[[int], T]) -> T:
        """Run ``work(end of the log)`` on the writer's thread while no append becomes visible."""
        result: T = await self._submit(lambda future: _Change(work, future))
        return result

    async def save_cursors(self, cursors: Sequence[tuple[int, Cursor | Mark]]) -> None:
        """Save cursors; durable on return. Of one subscription's, the one submitted last stays.

        One that cannot be stored is an error to those who submitted it, and to nobody else.
        """
        await self._submit(lambda future: _Save(cursors, future))

    async def _submit(self, make: Callable[[asyncio.Future[Any]], _Operation]) -> Any:
        if self._closed or self._loop is None:
            raise WriterClosed
        future = self._loop.create_future()
        self._queue.put(make(future))
        # The work is done even if the client goes away meanwhile; only its answer is dropped.
        return await asyncio.shield(future)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            operation = self._queue.get()
            group: list[_Operation] = []
            size_bytes = changes = 0
            while True:
                if operation is None:
                    stopping = True
                    break
                group.append(operation)
                if isinstance(operation, _Append):
                    size_bytes += len(operation.record.payload)
                    if size_bytes >= GROUP_MAX_BYTES:
                        break
                elif isinstance(operation, _Change):
                    changes += 1
                    if changes >= GROUP_MAX_CHANGES:
                        break
                try:
                    operation = self._queue.get_nowait()
                except queue.Empty:
                    break
            if group:
                self._write(group)

    def _write(self, group: Sequence[_Operation]) -> None:
        appends = [operation for operation in group if isinstance(operation, _Append)]
        changes = [operation for operation in group if isinstance(operation, _Change)]
        saves = [operation for operation in group if isinstance(operation, _Save)]
        # Appends are answered before the changes are made: a fence may take longer.
        if appends:
            before = self.log_end
            self._resolve(self._append(appends))
            if self.log_end != before and self._on_append is not None:
                self._on_loop(self._on_append)
        if changes:
            self._resolve(self._change(changes))
        if saves:
            self._resolve(self._save(saves))

    def _append(self, appends: Sequence[_Append]) -> list[_Outcome]:
        try:
            places = self._log.append([append.record for append in appends])
        except ValueError as error:
            if len(appends) == 1:
                return [(appends[0].future, None, error)]
            # One record that breaks a limit must not take its neighbours with it.
            return [outcome for append in appends for outcome in self._append([append])]
        except Exception as error:
            logger.exception("the event log refused an append of %d records", len(appends))
            return [(append.future, None, error) for append in appends]
        self.log_end = max(self.log_end, *(place.offset + 1 for place in places))
        return [(append.future, place, None) for append, place in zip(appends, places, strict=True)]

    def _change(self, changes: Sequence[_Change]) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        try:
            with self._log.fence() as end:
                for change in changes:
                    try:
                        outcomes.append((change.future, change.work(end), None))
                    except Exception as error:
                        outcomes.append((change.future, None, error))
        except Exception as error:
            logger.exception("the event log could not be fenced")
            outcomes += [(change.future, None, error) for change in changes[len(outcomes) :]]
        return outcomes

    def _save(self, saves: Sequence[_Save]) -> list[_Outcome]:
        newest: dict[int, Cursor | Mark] = {}
        for save in saves:
            newest.update(save.cursors)
        errors = self._save_newest(newest)
        outcomes: list[_Outcome] = []
        for save in saves:
            failed = next((errors[number] for number, _ in save.cursors if number in errors), None)
            outcomes.append((save.future, None, failed))
        return outcomes

    def _save_newest(self, newest: dict[int, Cursor | Mark]) -> dict[int, Exception]:
        """Save them; those that could not be, by number, each with its error."""
        if not newest:
            return {}
        try:
            self._registry.save_cursors(
                [
                    (number, cursor.cursor() if isinstance(cursor, Mark) else cursor)
                    for number, cursor in newest.items()
                ]
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
                for number, found in self._save_newest(dict((item,))).items()
            }
        return {}

    def _resolve(self, outcomes: list[_Outcome]) -> None:
        if not self._on_loop(_set_results, outcomes):
            logger.warning("%d answers came after the gateway had ended", len(outcomes))

    def _on_loop(self, work: Callable[..., None], *arguments: Any) -> bool:
        """Have something done on the event loop; False when it has ended, and so nobody waits for it."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            return False
        return True


def _set_results(outcomes: list[_Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
            future.exception()  # seen: a client that went away leaves no warning behind
        else:
            future.set_result(result)
