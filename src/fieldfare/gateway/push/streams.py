"""Connections to receivers of which an answer is read bit by bit, and no more of it than a bound."""

from __future__ import annotations

import ssl
from typing import Any

import httpcore

READ_AT_ONCE = 1 << 10
"""Bytes. Whoever parses them lets nobody else go on meanwhile, and of the smallest parts of an answer that
there are a read of 64 KiB holds thousands: some milliseconds instead of hundreds."""

READ_MAX_BYTES = 128 << 10
"""Of what comes after a request so much is read: some 1xx answers may be before the one that counts, without
end, and chunks of a body may be of one byte."""


class BoundedStream(httpcore.AsyncNetworkStream):
    """A connection, see above.

    Parameters
    ----------
    stream
        What it is made of.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._read_bytes = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._read_bytes >= READ_MAX_BYTES:
            raise httpcore.ReadError("its answer has no end")
        data = await self._stream.read(min(max_bytes, READ_AT_ONCE), timeout)
        self._read_bytes += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._read_bytes = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
