"""Who takes nothing of what is sent to him is cut off; who takes it slowly is not.

A slow line may need minutes for what waits in one connection's buffers, an event of a mebibyte say, and would
be cut off again and again in the midst of it. So it is not asked whether all of it was read in time, but
whether the client's system goes on taking some. Whoever is cut off takes next to nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import suppress

WRITTEN_AHEAD_BYTES = 64 << 10
"""So much waits in a connection before its writers do: the usual bound, which with TLS would be 512 KiB."""

LEAST_BYTES_PER_S = 100
"""Who takes less may hold what was written for him no longer than who takes nothing."""

_BYTES_ACKED = struct.Struct("=120xQ")
"""Where Linux's ``tcp_info`` says how much the other system has taken since the connection was made."""


class Unread:
    """Watches one connection while more waits in it than is written ahead.

    Parameters
    ----------
    limit_s
        So long a client may take nothing.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._taken_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Writers wait from now on."""
        self._taken_bytes = _taken_bytes(transport)
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._look, transport)

    def end(self) -> None:
        """They do not any more, or there is no connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, transport: asyncio.Transport) -> None:
        before_bytes = self._taken_bytes
        self.begin(transport)
        if self._taken_bytes - before_bytes < LEAST_BYTES_PER_S * self._limit_s:
            self.end()
            transport.abort()


def _taken_bytes(transport: asyncio.Transport) -> int:
    """How much the client's system has taken, counted from anywhere.

    Where the system does not say it, what has left the transport's own buffer: with TLS that is seen late.
    """
    plain = transport.get_extra_info("socket")
    if plain is not None and hasattr(socket, "TCP_INFO"):
        # By a descriptor of its own, for uvloop's sockets know few options.
        with suppress(OSError, struct.error), socket.socket(fileno=os.dup(plain.fileno())) as twin:
            return int(
                _BYTES_ACKED.unpack(twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size))[
                    0
                ]
            )
    return -transport.get_write_buffer_size()
