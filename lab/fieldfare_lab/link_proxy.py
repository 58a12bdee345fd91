"""A proxy on loopback between a client and a service: it cuts, freezes, slows and counts, and keeps requests.

All proxies of a process share one thread with an event loop.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

PIECE_BYTES = 64 << 10
FROZEN_LOOK_S = 0.02
"""Seconds between looks whether a frozen proxy passes bytes on again."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)

T = TypeVar("T")


class Request(NamedTuple):
    """A request that passed: when its first and last byte did (monotonic seconds), and its body as sent."""

    begun_s: float
    ended_s: float
    body: bytes


class _Requests:
    """Splits what a client sends over one connection into requests with a Content-Length."""

    def __init__(self, add: Callable[[Request], None]) -> None:
        self._add = add
        self._held = bytearray()
        self._missing = -1
        self._begun_s = 0.0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the connection."""
        now_s = time.monotonic()
        if not self._held and self._missing < 0:
            self._begun_s = now_s
        self._held += piece
        while True:
            if self._missing < 0:
                end = self._held.find(b"\r\n\r\n")
                if end < 0:
                    return
                found = _LENGTH.search(self._held, 0, end + 2)
                self._missing = int(found[1]) if found else 0
                del self._held[: end + 4]
            if len(self._held) < self._missing:
                return
            self._add(Request(self._begun_s, now_s, bytes(self._held[: self._missing])))
            del self._held[: self._missing]
            self._missing, self._begun_s = -1, now_s


class LinkProxy:
    """Passes connections on to a port, and their bytes in both directions.

    Parameters
    ----------
    port
        The port on loopback to which it passes them on.

    Attributes
    ----------
    port
        The port where clients connect.
    delay_s
        Seconds by which each piece of up to `PIECE_BYTES` is held back.
    is_cut
        Whether it refuses connections; set by `cut` and `heal`.
    is_frozen
        Whether bytes are held back, on connections that stay open; set by `freeze` and `heal`.
    is_keeping
        Whether requests are kept in `requests`.
    bytes_there, bytes_back
        Bytes that passed from clients to the service, and back.
    cuts
        How many times it was cut.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.delay_s = 0.0
        self.is_cut = False
        self.is_frozen = False
        self.is_keeping = False
        self.requests: list[Request] = []
        self.bytes_there = self.bytes_back = 0
        self.cuts = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = _running_loop()
        self._server = self._call(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Reset all connections, and refuse new ones until `heal`."""
        self.is_cut = True
        self.cuts += 1
        self._call(self._reset())

    def freeze(self) -> None:
        """Hold all bytes back until `heal`."""
        self.is_frozen = True

    def heal(self) -> None:
        """Accept connections again, and pass on what was held back."""
        self.is_cut = self.is_frozen = False

    def close(self) -> None:
        """End all connections, and stop listening."""
        self._call(self._close())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _close(self) -> None:
        self._server.close()
        await self._reset()

    async def _reset(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.is_cut:
                raise ConnectionRefusedError
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            await asyncio.gather(self._pass_there(reader, back), self._pass_back(there, writer))
        finally:
            self._open -= {writer, back}
            for each in (writer, back):
                each.close()

    async def _pass_there(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        requests = _Requests(self._keep)

        def count(piece: bytes) -> None:
            self.bytes_there += len(piece)
            requests.feed(piece)

        await self._pass(source, to, count)

    async def _pass_back(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        def count(piece: bytes) -> None:
            self.bytes_back += len(piece)

        await self._pass(source, to, count)

    def _keep(self, request: Request) -> None:
        if self.is_keeping:
            self.requests.append(request)

    async def _pass(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, count: Callable[[bytes], None]
    ) -> None:
        with suppress(OSError):
            while piece := await source.read(PIECE_BYTES):
                await asyncio.sleep(self.delay_s)
                while self.is_frozen:
                    await asyncio.sleep(FROZEN_LOOK_S)
                to.write(piece)
                count(piece)
                await to.drain()
        to.close()


_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all proxies of this process; it is started with the first."""
    with _lock:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, name="link-proxies", daemon=True).start()
        return _loops[0]
