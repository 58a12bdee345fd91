"""Connections to receivers whose responses are read in small pieces and up to a bound."""

from __future__ import annotations

import ssl
from typing import Any

import httpcore

READ_BATCH_SIZE = 1 << 10
"""Maximum bytes per read. Parsing a read blocks the event loop, and 64 KiB of the smallest response parts
hold thousands of them: small reads take milliseconds instead of hundreds.
"""

READ_MAX_BYTES = 128 << 10
"""Maximum bytes read after a request; then the read fails. A response may have any number of 1xx responses
before the one that counts, and chunks of one byte in its body.
"""


class BoundedStream(httpcore.AsyncNetworkStream):
    """A connection with the bounds above.

    Parameters
    ----------
    stream
        The underlying connection.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._read_bytes = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._read_bytes >= READ_MAX_BYTES:
            raise httpcore.ReadError(f"its response is longer than {READ_MAX_BYTES >> 10} KiB")
        data = await self._stream.read(min(max_bytes, READ_BATCH_SIZE), timeout)
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
