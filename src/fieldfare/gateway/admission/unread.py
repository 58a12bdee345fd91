"""Abort connections of clients that do not read; slow readers are kept.

A slow line may need minutes for one connection's buffers, for example for an event of a mebibyte, and would
be cut off again and again midway. So the check is not whether all of it was read in time, but whether the
client's system keeps taking data. A client that is cut off takes next to nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import suppress

WRITTEN_AHEAD_BYTES = 64 << 10
"""Bytes buffered in a connection before its writers wait: the usual bound, which would be 512 KiB with TLS.
"""

LEAST_BYTES_PER_S = 100
"""Minimum bytes per second; a client that takes less is cut off like one that takes nothing."""

_BYTES_ACKED = struct.Struct("=120xQ")
"""Offset in Linux's ``tcp_info`` of the bytes acknowledged by the peer since the connection was made."""

_Taken = tuple[int | None, int]
"""Bytes taken by the client's system, if this system reports them, and bytes in the write buffer."""


class WriteWatch:
    """Watches one connection while its writers, or its close, wait for the client.

    Parameters
    ----------
    limit_s
        Interval in seconds over which a client must take `LEAST_BYTES_PER_S` on average.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._taken: _Taken = (None, 0)
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport) -> None:
        """Start watching: writers wait from now on, or the connection is about to close."""
        self.stop()
        self._taken = _taken(transport)
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._check, transport)

    def stop(self) -> None:
        """Stop watching: the writers continue, or the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, transport: asyncio.Transport) -> None:
        before = self._taken
        self.start(transport)
        if _bytes_between(before, self._taken) < LEAST_BYTES_PER_S * self._limit_s:
            self.stop()
            transport.abort()


def _taken(transport: asyncio.Transport) -> _Taken:
    plain = transport.get_extra_info("socket")
    acked_bytes = None
    if plain is not None and hasattr(socket, "TCP_INFO"):
        # With a descriptor of its own, as uvloop's sockets support few options.
        with suppress(OSError, struct.error), socket.socket(fileno=os.dup(plain.fileno())) as twin:
            found = twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
            acked_bytes = int(_BYTES_ACKED.unpack(found)[0])
    return acked_bytes, transport.get_write_buffer_size()


def _bytes_between(before: _Taken, now: _Taken) -> int:
    """Return the bytes taken between two looks.

    Where the system does not report them, these are the bytes that left the buffer: with TLS that is seen
    late.
    """
    if before[0] is None or now[0] is None:
        return before[1] - now[1]
    return now[0] - before[0]
