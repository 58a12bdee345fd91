"""The connections between the driver and the tasks that follow the log, on this machine or on others.

    task                         driver
    token, task     ─────▶       known: the task may follow
    "want STAMP"    ─────▶       the indexer is asked for an index that covers it
    "take P A B"    ─────▶       records A to B of partition P are taken for this task of its job, or not:
                    ◀─────       "A", or where those begin that no task has taken, see `TakenStripes`
    "took CPU_S S"  ─────▶       counted: CPU time of matching in the last seconds, if the driver asks for it
    "behind"        ─────▶       ends all tasks, see `FollowerHub.end`
    "over"          ─────▶       ends the copies of this task that Spark has started
    "serve"         ─────▶       the connection is handed over, see `distributed.connections`
                    ◀─────       the connection is closed, or the driver has died: the task ends

Spark can only kill a task, and with it the Python process that has the index open.
"""

from __future__ import annotations

import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf

import msgspec

from fieldfare.runtimes.spark.following import TakenStripes

_log = logging.getLogger("fieldfare.pipeline")

CONNECT_S = 5.0
"""Maximum seconds until a task has reached the driver; until a connection has named its token."""
ACCEPT_PAUSE_S = 0.05
"""Seconds from a connection that could not be accepted to the next look at the connections."""
LINE_BYTES_MAX = 128
TAKE_S = 5.0
"""Maximum seconds for which a task waits for the answer whether it may take records; then it ends."""
TAKEN_JOBS_MAX = 16
"""Number of jobs whose taken records are known, the newest; a task of an older one that hung takes any."""
UNREACHED_MAX = 3
"""Following jobs with a task that did not reach the driver, one after the other, after which there are only
batches for `UNREACHED_REST_S` seconds: such a task cannot be told to end."""
UNREACHED_REST_S = 600.0
STRANGERS_MAX = 64
"""Maximum connections that have not named their token; the oldest beyond it are closed."""


Receiver = Callable[[str, socket.socket], bool]
"""Takes a serving task's connection, by the task's name; returns False if the task is not one of its own."""


class DriverAddress(msgspec.Struct, frozen=True):
    """Where tasks reach their driver, and the token that they name."""

    host: str
    port: int
    token: str


class _Connection:
    """A connection of a task, or of a stranger, which has not named the token."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.since_s = time.monotonic()
        self.is_known = False
        self.task = b""
        self._read = b""

    def shut_down(self) -> None:
        with suppress(OSError):  # the other side has gone
            self.socket.shutdown(socket.SHUT_RDWR)

    def answer(self, number: int) -> None:
        with suppress(OSError):  # the other side has gone
            self.socket.send(b"%d\n" % number)

    def lines(self) -> list[bytes] | None:
        """Return the lines that have arrived; None if the connection was closed or says too much."""
        try:
            read = self.socket.recv(4 * LINE_BYTES_MAX)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._read = (self._read + read).split(b"\n")
        return lines if read and len(self._read) <= LINE_BYTES_MAX else None


class FollowerHub:
    """The driver's end of the connections, served by a thread until `close`.

    Parameters
    ----------
    host : str
        This machine's address, as tasks reach it.
    bind, port : str, int
        The address and the port at which to listen; 0 for any free one.
    want_index : callable
        Called with a stamp that the index does not cover yet.
    took : callable, optional
        Called with the CPU time of matching of a task, in seconds, and in how many seconds.

    Raises
    ------
    OSError
        Nothing can listen at that address and port.
    """

    def __init__(
        self,
        host: str,
        bind: str,
        port: int,
        want_index: Callable[[int], None],
        took: Callable[[float, float], None] | None = None,
    ) -> None:
        family, _, _, _, place = socket.getaddrinfo(bind.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(place[:2], family=family, dualstack_ipv6=place[0] == "::")
        self._listener.setblocking(False)
        self._host, self._port = host.strip("[]"), int(self._listener.getsockname()[1])
        self._want_index, self._took = want_index, took
        self._token = secrets.token_hex(16)
        self._taken: dict[bytes, TakenStripes] = {}
        self._receivers: list[Receiver] = []
        self._lock = threading.Lock()
        self._connections: dict[int, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wakes, self._wake = socket.socketpair()
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="fieldfare-followers", daemon=True)
        self._thread.start()

    @property
    def address(self) -> DriverAddress:
        """The address for tasks that start now: those that start after the next `end` need another one."""
        return DriverAddress(self._host, self._port, self._token)

    def end(self) -> None:
        """End all tasks that follow, and those that were given an address and have not come yet."""
        with self._lock:
            self._token = secrets.token_hex(16)
            for each in self._connections.values():
                each.shut_down()

    @contextmanager
    def receiving(self, receiver: Receiver) -> Iterator[None]:
        """Hand connections of tasks that serve over to a receiver."""
        self._receivers.append(receiver)
        try:
            yield
        finally:
            self._receivers.remove(receiver)

    def _end_copies(self, task: bytes) -> None:
        with self._lock:
            for each in self._connections.values():
                if each.task == task:
                    each.shut_down()

    def close(self) -> None:
        """End all tasks, and the thread."""
        self.end()
        with suppress(OSError):
            self._wake.send(b"\0")
        self._thread.join(CONNECT_S)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(CONNECT_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wakes:
                    self._close_all()
                    return
                else:
                    self._hear(self._connections[key.fd])
            self._drop_strangers()

    def _accept(self) -> None:
        try:
            opened, _ = self._listener.accept()
        except OSError:  # the other side has gone, or there are too many open files
            time.sleep(ACCEPT_PAUSE_S)  # the connection still waits, and the next look would find it at once
            return
        opened.setblocking(False)
        with self._lock:
            self._connections[opened.fileno()] = _Connection(opened)
        self._selector.register(opened, selectors.EVENT_READ)

    def _hear(self, connection: _Connection) -> None:
        lines = connection.lines()
        if lines is None:
            self._drop(connection)
            return
        for line in lines:
            if not connection.is_known:
                token, _, connection.task = line.partition(b" ")
                with self._lock:
                    connection.is_known = secrets.compare_digest(token, self._token.encode())
                if not connection.is_known:
                    self._drop(connection)
                    return
            elif line == b"behind":
                self.end()
            elif line == b"serve":
                self._hand_over(connection)
                return
            elif line == b"over":
                self._end_copies(connection.task)
            elif line.startswith(b"want "):
                with suppress(ValueError):
                    self._want_index(int(line[5:]))
            elif line.startswith(b"take "):
                with suppress(ValueError):
                    partition, start, end = map(int, line[5:].split())
                    connection.answer(self._taken_by(connection).take(partition, start, end))
            elif line.startswith(b"took "):
                cpu_s, _, seconds = line[5:].partition(b" ")
                with suppress(ValueError):
                    self._count(float(cpu_s), float(seconds))

    def _taken_by(self, connection: _Connection) -> TakenStripes:
        """Return the records that tasks of a connection's job have taken."""
        job = connection.task.partition(b".")[0]
        while job not in self._taken and len(self._taken) >= TAKEN_JOBS_MAX:
            del self._taken[next(iter(self._taken))]
        return self._taken.setdefault(job, TakenStripes())

    def _hand_over(self, connection: _Connection) -> None:
        with self._lock:
            del self._connections[connection.socket.fileno()]
        self._selector.unregister(connection.socket)
        name = connection.task.decode(errors="replace")
        if not any(receiver(name, connection.socket) for receiver in list(self._receivers)):
            connection.socket.close()

    def _count(self, cpu_s: float, seconds: float) -> None:
        """Count the CPU time of a task's thread, if it is possible: others would add or release hosts."""
        if self._took is not None and 0 <= cpu_s < inf and 0 < seconds < inf:
            self._took(min(cpu_s, seconds), seconds)

    def _drop_strangers(self) -> None:
        strangers = [each for each in self._connections.values() if not each.is_known]
        late_s = time.monotonic() - CONNECT_S
        for place, each in enumerate(strangers):
            if each.since_s < late_s or place < len(strangers) - STRANGERS_MAX:
                self._drop(each)

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            del self._connections[connection.socket.fileno()]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _close_all(self) -> None:
        for each in list(self._connections.values()):
            self._drop(each)
        self._selector.close()
        for other in (self._listener, self._wakes, self._wake):
            other.close()


class DriverLink:
    """A task's end of its connection to the driver; without one, the driver cannot end the task.

    Parameters
    ----------
    connection : socket, optional
        Does not block.
    """

    def __init__(self, connection: socket.socket | None) -> None:
        self._socket = connection

    @property
    def is_open(self) -> bool:
        """Whether the driver was reached."""
        return self._socket is not None

    def goes_on(self) -> bool:
        """Return whether the driver has not ended this task."""
        if self._socket is None:
            return True
        try:
            return bool(self._socket.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def take(self, partition: int, start: int, end: int) -> int:
        """Take records for this task; see `TakenStripes.take`. Without an answer they are taken.

        Then the task matches them, and ends: a later answer would be taken for that of another question.
        """
        if self._socket is None:
            return start
        self.say(f"take {partition} {start} {end}")
        try:
            self._socket.settimeout(TAKE_S)
            answer = self._socket.makefile("rb").readline(LINE_BYTES_MAX)
            self._socket.setblocking(False)
            return int(answer)
        except (OSError, ValueError):
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            return start

    def want_index(self, stamp: int) -> None:
        """Ask for an index that covers a stamp."""
        self.say(f"want {stamp}")

    def say_took(self, cpu_s: float, seconds: float) -> None:
        """Say that matching took `cpu_s` of CPU time in the last seconds."""
        self.say(f"took {cpu_s:.6f} {seconds:.6f}")

    def say_behind(self) -> None:
        """Say that this task returns because it is too slow; the driver then ends the others."""
        self.say("behind")

    def say_over(self) -> None:
        """Say that this task returns because its time is over."""
        self.say("over")

    def serve(self) -> socket.socket | None:
        """Say that this task serves; return its connection, which blocks, or None without one."""
        self.say("serve")
        if self._socket is not None:
            self._socket.setblocking(True)
        return self._socket

    def say(self, line: str) -> None:
        """Send a line to the driver."""
        if self._socket is not None:
            with suppress(OSError):  # the driver has ended this task
                self._socket.sendall(f"{line}\n".encode())

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def link_to(address: DriverAddress, task: str = "") -> DriverLink:
    """Return a connection to the driver, or a link without one if it cannot be reached.

    Parameters
    ----------
    address : DriverAddress
    task : str
        Its name, which its copies share: its job's, a dot, and its number. Without spaces, short.
    """
    try:
        connection = socket.create_connection((address.host, address.port), CONNECT_S)
    except OSError:
        return DriverLink(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    link = DriverLink(connection)
    link.say(f"{address.token} {task}")
    return link


class Reach:
    """Whether following tasks reach the driver; if not, because of a firewall, there are only batches."""

    def __init__(self) -> None:
        self._unreached, self._rests_until_s = 0, 0.0

    @property
    def rests(self) -> bool:
        """Whether no task should follow now."""
        return time.monotonic() < self._rests_until_s

    def count(self, address: DriverAddress, *, is_reached: bool) -> None:
        """Count a job: whether all of its tasks have reached the driver at an address."""
        self._unreached = 0 if is_reached else self._unreached + 1
        if self._unreached == 1:
            _log.warning(
                "a task that follows the log did not reach this machine at %s:%d", address.host, address.port
            )
        elif self._unreached >= UNREACHED_MAX:
            self._unreached, self._rests_until_s = 0, time.monotonic() + UNREACHED_REST_S
            _log.warning(
                "no task follows the log for %.0f s, as they do not reach this machine", UNREACHED_REST_S
            )
