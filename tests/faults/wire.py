"""What lies between clients and a service: cut, or slow, when a test says so."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from urllib.parse import urlsplit

PIECE_BYTES = 16 << 10


class Wire:
    """Hands on every connection to a service, byte by byte.

    Attributes
    ----------
    url
        Where clients connect.
    target
        The service's own address.
    delay_s
        How long each piece of up to 16 KiB takes.
    cuts
        How many connections were cut.
    """

    def __init__(self) -> None:
        self.target = ""
        self.delay_s = 0.0
        self.cuts = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, "127.0.0.1", 0), self._loop
        )
        self._server = listening.result(60)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset every connection, wherever its bytes are."""
        done = asyncio.run_coroutine_threadsafe(self._cut(), self._loop)
        self.cuts += done.result(60)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    async def _close(self) -> None:
        # In its loop: a server that is closed while a connection ends elsewhere wakes who waits for it twice.
        self._server.close()
        self.cuts += await self._cut()

    async def _cut(self) -> int:
        count = len(self._open)
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        return count // 2

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to = urlsplit(self.target)
        try:
            there, back = await asyncio.open_connection(to.hostname, to.port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        finally:
            self._open -= {writer, back}
            for each in (writer, back):
                each.close()

    async def _carry(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await source.read(PIECE_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                to.write(piece)
                await to.drain()
        with suppress(OSError):
            to.close()
