"""Accept waiting connections from a listening socket, several per iteration of the event loop.

uvloop accepts one per iteration. Iterations that send messages take some milliseconds: a space that opens
connections faster than that would fill the system's queue, and the connections of others would wait behind
its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

ACCEPTED_MAX = 32
"""Maximum connections accepted per iteration besides uvloop's own; more wait for the next iteration."""


class Acceptor:
    """Accepts the connections that uvloop leaves, until `close`.

    Parameters
    ----------
    listener
        The listening socket, on which uvloop accepts connections, too.
    make_protocol
        Returns the protocol of a new connection.
    """

    def __init__(self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._listener = listener.dup()
        self._listener.setblocking(False)
        self._is_due = False
        self._opening: set[asyncio.Task[object]] = set()
        self._loop.add_reader(self._listener.fileno(), self._have_accepted)

    def close(self) -> None:
        """Stop accepting connections."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _have_accepted(self) -> None:
        """Let uvloop accept first: mostly no connection is left then, and its way is faster."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._accept)

    def _accept(self) -> None:
        self._is_due = False
        for _ in range(ACCEPTED_MAX):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # none left, closed, or too many open files, which uvloop handles
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opening = self._loop.create_task(
                self._loop.connect_accepted_socket(self._make_protocol, connection)
            )
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
