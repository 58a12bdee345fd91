"""The connections of a client, at a server that counts them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from fieldfare.client.endpoint import Endpoint
from fieldfare.client.transport import make_async_http

STREAMS = 40
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def test_acks_of_many_subscribers_share_a_connection() -> None:
    asyncio.run(_acks_of_many_subscribers())


async def _acks_of_many_subscribers() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(STREAM if head.startswith(b"GET /stream") else ANSWER)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = Endpoint(f"http://127.0.0.1:{port}", 60.0, None, tls=False, proxy=None)
    async with server, make_async_http(endpoint) as http, AsyncExitStack() as stack:
        for _ in range(STREAMS):
            await stack.enter_async_context(http.stream("GET", "/stream"))
        for _ in range(5):
            assert (await http.get("/other")).json() == {}
        assert connections == STREAMS + 1
