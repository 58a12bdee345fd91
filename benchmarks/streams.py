"""A client with many open streams, in a separate process, and the memory of a process."""

from __future__ import annotations

import os
import resource
import select
import socket
import time
from array import array
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fieldfare_lab.reporting import reporting_process

OPENED_BATCH_SIZE = 200
LOOKED_EVERY_S = 0.005
"""Interval at which the client reads its streams, in seconds. A client that woke for each message would take
processor time from the service that is measured. Messages appear to arrive later by at most this time."""
SPARE_FILES = 500

ARRIVAL = np.dtype([("stream", "i4"), ("number", "i4"), ("sent_s", "f8"), ("came_s", "f8")])
"""The arrivals: which event came on which stream, when it was sent, and when it came."""

Arrivals = NDArray[np.void]


class Sent(msgspec.Struct):
    """The fields in the data of an event."""

    number: int
    sent_s: float


class Event(msgspec.Struct):
    data: Sent


decoder = msgspec.json.Decoder(Event)


def name_of(number: int) -> str:
    return f"live-{number}"


def follow(address: tuple[str, int], streams: int, pipe: Connection) -> None:
    """Open the streams, report that they are open, and send all arrivals on request."""
    raise_open_files(streams)
    poll = select.epoll()
    sockets: dict[int, tuple[int, socket.socket]] = {}
    for first in range(0, streams, OPENED_BATCH_SIZE):
        some = range(first, min(first + OPENED_BATCH_SIZE, streams))
        opened = [open_stream(address, name_of(number)) for number in some]
        for number, connection in zip(some, opened, strict=True):
            answer = b""
            while b": fieldfare" not in answer:
                if not (piece := connection.recv(4096)):
                    raise RuntimeError(f"stream {number} did not open: {answer[:500]!r}")
                answer += piece
            connection.setblocking(False)
            sockets[connection.fileno()] = number, connection
            poll.register(connection.fileno(), select.EPOLLIN)
    poll.register(pipe.fileno(), select.EPOLLIN)
    pipe.send("open")
    pipe.send(receive(poll, sockets, pipe.fileno()))


def receive(poll: select.epoll, sockets: dict[int, tuple[int, socket.socket]], until: int) -> Arrivals:
    """Read the streams until a file becomes readable."""
    found = array("d")
    while True:
        for descriptor, _ in poll.poll(maxevents=len(sockets) + 1):
            if descriptor == until:
                return _arrivals(found)
            number, connection = sockets[descriptor]
            piece = connection.recv(65_536)
            if not piece:
                raise RuntimeError(f"stream {number} ended")
            now_s = time.monotonic()
            for line in piece.split(b"\n"):
                if line.startswith(b"data: "):
                    data = decoder.decode(line[6:]).data
                    found.extend((number, data.number, data.sent_s, now_s))
        time.sleep(LOOKED_EVERY_S)


def _arrivals(found: array[float]) -> Arrivals:
    """Four figures each, in a row."""
    rows = np.frombuffer(found).reshape(-1, 4) if found else np.empty((0, 4))
    arrivals = np.empty(len(rows), ARRIVAL)
    for at, name in enumerate(ARRIVAL.names or ()):
        arrivals[name] = rows[:, at]
    return arrivals


def open_stream(address: tuple[str, int], id: str) -> socket.socket:
    connection = socket.create_connection(address, timeout=60)
    path = f"/v1/spaces/default/subscriptions/{id}/stream?ack=auto"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


def raise_open_files(streams: int) -> None:
    """Raise the limit on open files to what the streams need; RuntimeError if that is impossible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = streams + SPARE_FILES
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise RuntimeError(f"{streams} streams need {wanted} open files, and ulimit -n -H is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def followed(url: str, streams: int) -> AbstractContextManager[Connection]:
    """Run the client in a separate process, with all its streams open."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return reporting_process(follow, (host, int(port)), streams)


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes_of(pid: int) -> tuple[int, int]:
    """Resident memory of a process, and the part of it that is pages of files."""
    _, resident, mapped, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return resident * resource.getpagesize(), mapped * resource.getpagesize()
