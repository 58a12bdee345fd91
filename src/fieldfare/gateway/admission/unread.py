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

_Taken = tuple[int | None, int]
"""How much the client's system has taken, where this one says it, and how much waits in the buffer."""


class Unread:
    """Watches one connection while more waits in it than is written ahead.

    Parameters
    ----------
    limit_s
        So long a client may take nothing.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._taken: _Taken = (None, 0)
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Writers wait from now on, or whoever would close the connection."""
        self.end()
        self._taken = _taken(transport)
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._look, transport)

    def end(self) -> None:
        """They do not any more, or there is no connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, transport: asyncio.Transport) -> None:
        before = self._taken
        self.begin(transport)
        if _bytes_between(before, self._taken) < LEAST_BYTES_PER_S * self._limit_s:
            self.end()
            transport.abort()


def _taken(transport: asyncio.Transport) -> _Taken:
    plain = transport.get_extra_info("socket")
    acked_bytes = None
    if plain is not None and hasattr(socket, "TCP_INFO"):
        # By a descriptor of its own, for uvloop's sockets know few options.
        with suppress(OSError, struct.error), socket.socket(fileno=os.dup(plain.fileno())) as twin:
            found = twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
            acked_bytes = int(_BYTES_ACKED.unpack(found)[0])
    return acked_bytes, transport.get_write_buffer_size()


def _bytes_between(before: _Taken, now: _Taken) -> int:
    """Where the system does not say it, what has left the buffer: with TLS that is seen late."""
    if before[0] is None or now[0] is None:
        return before[1] - now[1]
    return now[0] - before[0]
