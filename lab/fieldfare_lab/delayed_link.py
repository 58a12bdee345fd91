"""A network path with a given round-trip time: a proxy on loopback that forwards data after a delay."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection


class DelayedPipe(asyncio.Protocol):
    """Forwards data in order, ``delay_s`` after it arrived."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._target: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connect(self, target: asyncio.Transport) -> None:
        self._target = target
        for data in self._early:
            self.data_received(data)
        self._early.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._target is None:
            self._early.append(data)
        else:
            asyncio.get_running_loop().call_later(self._delay_s, self._target.write, data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._target is not None:
            asyncio.get_running_loop().call_later(self._delay_s, self._target.close)


def run_proxy(pipe: Connection, port: int, round_trip_s: float) -> None:
    """Listen on a free port, and forward to another one, with half the round-trip time each way."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()

        async def join(near: DelayedPipe) -> None:
            far_transport, far = await loop.create_connection(
                lambda: DelayedPipe(round_trip_s / 2), "127.0.0.1", port
            )
            far.connect(near.transport)  # type: ignore[arg-type]
            near.connect(far_transport)

        class Near(DelayedPipe):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                task = loop.create_task(join(self))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        server = await loop.create_server(lambda: Near(round_trip_s / 2), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def delayed(port: int, round_trip_ms: float) -> Iterator[int]:
    """Return a port that forwards to another one with this round-trip time; for 0, that port itself."""
    if not round_trip_ms:
        yield port
        return
    context = multiprocessing.get_context("spawn")
    here, there = multiprocessing.Pipe()
    proxy = context.Process(target=run_proxy, args=(there, port, round_trip_ms / 1000), daemon=True)
    proxy.start()
    there.close()  # If the proxy dies at its start, `recv` fails and does not wait for ever.
    try:
        yield here.recv()
    finally:
        proxy.terminate()
        proxy.join()
