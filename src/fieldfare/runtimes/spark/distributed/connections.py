"""Connections between the driver and the tasks of matchers, on which ranges are matched without a Spark job.

    driver                               task
    a `MatchOrder`              ─────▶   its matchers' part of the ranges is matched
                                ◀─────   findings, an Arrow record batch each, then an empty frame
                                ◀─────   or the reason why the ranges could not be matched; the task ends
    closed, or the driver died  ─────▶   the task ends

A frame is its length, four bytes, and its content; the length `_FAILED` announces a reason, in another frame.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec
import pyarrow as pa

from fieldfare.free_memory import release_free_memory
from fieldfare.runtimes.spark.distributed.tasks import FINDINGS
from fieldfare.runtimes.spark.range_task import RecordRange

ANSWER_S = 10.0
"""Maximum seconds in which nothing comes from a matcher that matches; then batches take its place."""
RELEASE_S = 5.0
"""Seconds without an order after which a task gives freed memory back."""
REASON_CHARACTERS_MAX = 2_000

_LENGTH = struct.Struct(">I")
_FAILED = 0xFFFFFFFF
_ORDER_BYTES_MAX = 64 << 20


class MatchersLostError(Exception):
    """A matcher did not answer, or could not match; a batch has to match the ranges."""


class MatchOrder(msgspec.Struct, frozen=True):
    """Ranges to match; without ranges, the task only maps the index of a manifest."""

    ranges: tuple[RecordRange, ...] = ()
    manifest: int = 0


def _send(connection: socket.socket, content: bytes | pa.Buffer) -> None:
    connection.sendall(_LENGTH.pack(len(content)))
    connection.sendall(content)


def _receive(connection: socket.socket, size: int) -> bytearray:
    """Receive `size` bytes; raise ConnectionError if the other side closes before that."""
    content = bytearray(size)
    at = memoryview(content)
    while at:
        read = connection.recv_into(at)
        if not read:
            raise ConnectionError("the connection was closed")
        at = at[read:]
    return content


def _receive_length(connection: socket.socket) -> int:
    return int(_LENGTH.unpack(_receive(connection, _LENGTH.size))[0])


class MatcherConnections:
    """The driver's end: the connections of a job's tasks.

    Parameters
    ----------
    names : sequence of str
        The tasks' names.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._connections: dict[str, socket.socket] = {}
        self._copies: list[socket.socket] = []
        self._changed = threading.Condition()
        self._is_closed = False

    def add(self, name: str, connection: socket.socket) -> bool:
        """Take the connection of a task; return False if it is not one of this job.

        A copy of a connected task stays connected, and gets no orders: if it ended, Spark would end the
        other one.
        """
        if name not in self._names:
            return False
        connection.settimeout(ANSWER_S)
        with self._changed:
            if self._is_closed:
                connection.close()
            elif name in self._connections:
                self._copies.append(connection)
            else:
                self._connections[name] = connection
                self._changed.notify_all()
        return True

    @property
    def is_open(self) -> bool:
        """Whether the tasks are not ended."""
        return not self._is_closed

    def wait(self, seconds: float) -> bool:
        """Wait until all tasks are connected, or until `close`; return whether all are."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._is_complete, seconds)
            return self._is_complete and not self._is_closed

    @property
    def _is_complete(self) -> bool:
        return len(self._connections) == len(self._names)

    def match(self, ranges: Iterable[RecordRange]) -> Iterator[pa.RecordBatch]:
        """Let all matchers match ranges; yield rows of ``FINDINGS``.

        Raises
        ------
        MatchersLostError
            One of them was lost, or could not match them.
        """
        self._order(MatchOrder(tuple(ranges)))
        for name, connection in self._connections.items():
            try:
                yield from self._answer(connection)
            except OSError as error:
                raise MatchersLostError(f"the task {name} was lost: {error}") from error

    def open(self, manifest: int) -> None:
        """Let all matchers map the index of a manifest; does not wait."""
        self._order(MatchOrder(manifest=manifest))

    def _order(self, order: MatchOrder) -> None:
        content = msgspec.json.encode(order)
        for name, connection in self._connections.items():
            try:
                _send(connection, content)
            except OSError as error:
                raise MatchersLostError(f"the task {name} was lost: {error}") from error

    def _answer(self, connection: socket.socket) -> Iterator[pa.RecordBatch]:
        while size := _receive_length(connection):
            if size == _FAILED:
                raise MatchersLostError(_receive(connection, _receive_length(connection)).decode())
            yield pa.ipc.read_record_batch(pa.py_buffer(_receive(connection, size)), FINDINGS)

    def close(self) -> None:
        """End all tasks, and those that are not connected yet."""
        with self._changed:
            self._is_closed = True
            for each in (*self._connections.values(), *self._copies):
                with suppress(OSError):  # wakes a thread that reads from it
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._changed.notify_all()


def serve(
    connection: socket.socket,
    seconds: float,
    match: Callable[[tuple[RecordRange, ...]], Iterator[pa.RecordBatch]],
    open_index: Callable[[int], None],
) -> None:
    """Match what the driver orders, until it closes the connection or the time is over.

    Parameters
    ----------
    connection : socket
        Blocks.
    match : callable
        Yields rows of ``FINDINGS``; an exception is reported to the driver, and ends this function.
    """
    ends_s, has_released = time.monotonic() + seconds, False
    while (left_s := ends_s - time.monotonic()) > 0:
        try:
            if not select.select([connection], [], [], min(RELEASE_S, left_s))[0]:
                if not has_released:
                    has_released = True
                    release_free_memory()
                continue
            size = _receive_length(connection)
            if size > _ORDER_BYTES_MAX:
                return
            order = msgspec.json.decode(_receive(connection, size), type=MatchOrder)
            has_released = False
            _carry_out(connection, order, match, open_index)
        except OSError:  # the driver has ended this task
            return


def _carry_out(
    connection: socket.socket,
    order: MatchOrder,
    match: Callable[[tuple[RecordRange, ...]], Iterator[pa.RecordBatch]],
    open_index: Callable[[int], None],
) -> None:
    if not order.ranges:
        with suppress(Exception):  # a range that needs the index will report the error
            open_index(order.manifest)
        return
    found = match(order.ranges)
    while True:
        try:
            row = next(found, None)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
            connection.sendall(_LENGTH.pack(_FAILED))
            _send(connection, said.encode())
            raise ConnectionError(said) from error
        if row is None:
            _send(connection, b"")
            return
        _send(connection, row.serialize())
