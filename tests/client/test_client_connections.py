"""The connections of a client, at a server that counts them."""

from __future__ import annotations

import asyncio
from collections import Counter

from fieldfare import AsyncClient

SUBSCRIBERS = 5
FRAME = b"id: 0-0-0\ndata: {}\n\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class CountingServer:
    """Answers each request with an empty object, and each request for a stream with one message."""

    def __init__(self) -> None:
        self.opened = 0
        self.requests = Counter[bytes]()
        self.open: set[asyncio.StreamWriter] = set()
        self.changed = asyncio.Condition()

    async def __aenter__(self) -> CountingServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def has_open(self, count: int) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: len(self.open) == count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method = head.split(b" ", 1)[0]
                self.requests[method] += 1
                if method == b"GET":
                    writer.write(STREAM + b"%x\r\n%b\r\n" % (len(FRAME), FRAME))
                else:
                    sizes = [
                        line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
                    ]
                    await reader.readexactly(int(sizes[0].partition(b":")[2]) if sizes else 0)
                    writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            async with self.changed:
                self.open.discard(writer)
                self.changed.notify_all()
            writer.close()


def test_a_subscriber_has_a_stream_and_a_connection_for_its_acks_and_closes_both() -> None:
    asyncio.run(_subscribe_many())


async def _subscribe_many() -> None:
    async with CountingServer() as server, AsyncClient(server.url) as client:
        subscribers = [client.subscribe(f"s{n}") for n in range(SUBSCRIBERS)]
        for subscriber in subscribers:
            message = await anext(subscriber)
            for _ in range(3):
                message.ack()
                await subscriber.flush()
        assert server.requests[b"GET"] == SUBSCRIBERS and server.requests[b"POST"] >= SUBSCRIBERS
        assert server.opened == len(server.open) == 2 * SUBSCRIBERS
        for subscriber in subscribers[1:]:
            await subscriber.close()
        await server.has_open(2)
        await client.close()
        await server.has_open(0)
