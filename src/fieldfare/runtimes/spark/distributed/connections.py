"""Connections between the driver and the tasks of matchers, on which ranges are matched without a Spark job.

    driver                               task
    an order                    ─────▶   is carried out
                                ◀─────   parts of the answer, then an empty frame
                                ◀─────   or the reason why it could not be carried out; the task ends
    closed, or the driver died  ─────▶   the task ends

A frame is its length, four bytes, and its content; the length `_FAILED` announces a reason, in another frame.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from fieldfare.free_memory import release_free_memory

ANSWER_S = 30.0
"""Maximum seconds in which no part of an answer comes; then batches take the task's place."""
RELEASE_S = 5.0
"""Seconds without an order after which a task gives freed memory back."""
REASON_CHARACTERS_MAX = 2_000

_LENGTH = struct.Struct(">I")
_FAILED = 0xFFFFFFFF
_ORDER_BYTES_MAX = 64 << 20


Content = bytes | bytearray | memoryview


class MatchersLostError(Exception):
    """A task did not answer, or could not carry out an order; a batch has to match the ranges."""


def _send(connection: socket.socket, content: Content) -> None:
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


@contextmanager
def _lost(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MatchersLostError(f"the task {name} was lost: {error}") from error


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
        with suppress(OSError):  # the task has gone
            # Otherwise an order waits for the acknowledgement of its length, up to 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
    def has_copies(self) -> bool:
        """Whether copies of tasks are connected."""
        return bool(self._copies)

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

    def ask(self, orders: Mapping[str, bytes]) -> Iterator[bytearray]:
        """Send each task an order, by its name; yield the parts of all answers.

        Raises
        ------
        MatchersLostError
            A task was lost, or could not carry out its order.
        """
        for name, order in orders.items():
            with _lost(name):
                _send(self._connections[name], order)
        for name in orders:
            connection = self._connections[name]
            with _lost(name):
                while size := _receive_length(connection):
                    if size == _FAILED:
                        raise MatchersLostError(_receive(connection, _receive_length(connection)).decode())
                    yield _receive(connection, size)

    def close(self) -> None:
        """End all tasks, and those that are not connected yet; a thread that reads gets an error."""
        with self._changed:
            self._is_closed = True
            for each in (*self._connections.values(), *self._copies):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()

    def release(self) -> None:
        """Close the connections, which no thread uses any more."""
        self.close()
        for each in (*self._connections.values(), *self._copies):
            each.close()


def serve(
    connection: socket.socket, seconds: float, carry_out: Callable[[bytearray], Iterator[Content]]
) -> None:
    """Carry out the driver's orders, until it closes the connection or the time is over.

    Parameters
    ----------
    connection : socket
        Blocks.
    carry_out : callable
        Yields the parts of an answer, none of them empty; an exception is reported to the driver, and ends
        this function.
    """
    ends_s, has_released = time.monotonic() + seconds, False
    orders = select.poll()  # `select.select` takes no descriptor above 1023
    orders.register(connection, select.POLLIN)
    with suppress(OSError):  # the driver has ended this task
        while (left_s := ends_s - time.monotonic()) > 0:
            if orders.poll(1000 * min(RELEASE_S, left_s)):
                size = _receive_length(connection)
                if size > _ORDER_BYTES_MAX or not _answer(connection, carry_out(_receive(connection, size))):
                    return
                has_released = False
            elif not has_released:
                has_released = True
                release_free_memory()


def _answer(connection: socket.socket, parts: Iterator[Content]) -> bool:
    """Send the parts of an answer, or why there is none; return whether there is one."""
    while True:
        try:
            part = next(parts, None)
        except Exception as error:
            connection.sendall(_LENGTH.pack(_FAILED))
            _send(connection, f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX].encode())
            return False
        _send(connection, part or b"")
        if part is None:
            return True
