"""A broker with a slow subscriber, over HTTP: a proxy before a gateway that holds back its answers.

Balasubramanian et al., section V.A: the broker has a finite buffer, and grants the publisher only its free
places; the subscriber is a gated vacationing server, which sleeps, then reads what the broker held when it
woke, one message after the other. A gateway has no such buffer: its log is on disk, and a slow subscriber
delays no publisher. This proxy takes the buffer's place: it passes a request on at once, and delays its
answer until there is room for each of its messages, in order of arrival.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

_HEADER = re.compile(rb"\r\n([a-z-]+): *([^\r]*)", re.IGNORECASE)
_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Mean times, both exponential, of reading one message and of the pause between two pulls, in seconds."""

    read_s: float
    vacation_s: float


class SlowBroker:
    """Passes connections on to a gateway; call `close` in the end.

    Parameters
    ----------
    port
        The gateway's port on loopback.
    subscriber
        How slow the subscriber is.
    buffer_messages
        Messages that the broker holds for the subscriber.
    delivered
        Called for each event that the subscriber has read, with its ``data``.
    seed
        Seed of the subscriber's times.

    Attributes
    ----------
    port
        The port where publishers connect.
    """

    def __init__(
        self,
        port: int,
        subscriber: Subscriber,
        buffer_messages: int,
        delivered: Callable[[dict[str, object]], None],
        seed: int = 1,
    ) -> None:
        self._to = port
        self._subscriber = subscriber
        self._buffer_messages = buffer_messages
        self._delivered = delivered
        # Two, so that the pauses are the same however many messages are read between them.
        self._pauses = random.Random(f"pauses {seed}")
        self._reads = random.Random(f"reads {seed}")
        self._buffer: deque[dict[str, object]] = deque()
        self._placed: set[tuple[bytes, bytes]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the broker did not start within 10 s")

    def close(self) -> None:
        """End all connections, and stop."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._has_room = asyncio.Condition()
        self._turn = asyncio.Lock()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        reading = asyncio.create_task(self._subscribe())
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in (reading, *self._tasks):
            task.cancel()

    async def _subscribe(self) -> None:
        """The gated vacationing server; it keeps to its own clock, however late it is woken."""
        due_s = time.monotonic()
        while True:
            due_s += self._pauses.expovariate(1 / self._subscriber.vacation_s)
            await asyncio.sleep(due_s - time.monotonic())
            for _ in range(len(self._buffer)):
                due_s += self._reads.expovariate(1 / self._subscriber.read_s)
                await asyncio.sleep(due_s - time.monotonic())
                self._delivered(self._buffer.popleft())
                async with self._has_room:
                    self._has_room.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        back_writer = None
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):  # The last: `close`.
                back, back_writer = await asyncio.open_connection("127.0.0.1", self._to)
                while True:
                    head, body = await _read_message(reader)
                    back_writer.write(head + body)
                    answer_head, answer_body = await _read_message(back)
                    if answer_head.split(b" ", 2)[1].startswith(b"2"):
                        await self._place(head, body)
                    writer.write(answer_head + answer_body)
                    await writer.drain()
        finally:
            self._tasks.discard(task)
            for each in (writer, back_writer):
                if each is not None:
                    each.close()

    async def _place(self, head: bytes, body: bytes) -> None:
        """Wait for a place for each message of a request; a repeat waits for its turn only."""
        found = {name.lower(): value for name, value in _HEADER.findall(head)}
        name = (found.get(b"fieldfare-producer", b""), found.get(b"fieldfare-sequence", b""))
        async with self._turn:
            if name in self._placed:
                return
            self._placed.add(name)
            for line in body.splitlines():
                async with self._has_room:
                    await self._has_room.wait_for(lambda: len(self._buffer) < self._buffer_messages)
                self._buffer.append(json.loads(line)["data"])


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read a request or an answer with a Content-Length: its head, and its body."""
    head = await reader.readuntil(_END)
    found = {name.lower(): value for name, value in _HEADER.findall(head)}
    return head, await reader.readexactly(int(found.get(b"content-length", b"0")))
