"""A connection before it is one: TLS, which is shaken hands on within the bounds of all connections.

A server that listens with TLS knows nothing of a connection before the handshake is over. Who never ends his
would hold a connection, and an open file, for a minute, and could hold as many as he likes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import Any, Protocol, cast

SURPLUS_MAX = 100
"""Connections beyond the most that may be, which still hear why they are refused."""

CLOSED_S = 2.0
"""A client that is told that the connection ends may take so long to say so, too."""


class Idle(Protocol):
    """A connection without a request."""

    def give_way(self) -> None:
        """End: others need its place."""


class Entered(Protocol):
    """What is to be connected, and what it has of its server's."""

    connections: set[Any]
    connections_max: int
    idle: dict[Any, None]
    loop: asyncio.AbstractEventLoop
    handshake: Handshake | None


def make_way(connections: set[Any], connections_max: int, idle: dict[Any, None]) -> bool:
    """Whether one that has come may stay: when there are too many, the longest idle goes for it."""
    if len(connections) <= connections_max:
        return True
    if not idle:
        return False
    longest: Idle = next(iter(idle))
    del idle[longest]
    longest.give_way()
    return True


class Handshake(asyncio.Protocol):
    """Counts as an idle connection until TLS is spoken on it.

    Parameters
    ----------
    connection
        What is connected then.
    tls
        The server's side.
    limit_s
        How long it may take.
    """

    def __init__(self, connection: Entered, tls: ssl.SSLContext, limit_s: float) -> None:
        self._connection = connection
        connection.handshake = self
        self._tls = tls
        self._limit_s = limit_s
        self._task: asyncio.Task[None] | None = None
        self._accepted: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not by start_tls: what the client says first may have been read, as plain text, before that begins.
        plain, to = transport.get_extra_info("socket"), self._connection
        try:
            accepted = socket.socket(plain.family, plain.type, plain.proto, fileno=os.dup(plain.fileno()))
        except OSError:
            return  # no more files may be open
        finally:
            transport.abort()  # type: ignore[attr-defined]
        accepted.setblocking(False)
        to.connections.add(self)
        is_room = make_way(to.connections, to.connections_max, to.idle)
        if not is_room and len(to.connections) > to.connections_max + SURPLUS_MAX:
            to.connections.discard(self)
            accepted.close()
            return
        to.idle[self] = None
        self._accepted = accepted
        self._task = to.loop.create_task(self._enter())

    def give_way(self) -> None:
        self.leave()
        if self._task is not None:
            self._task.cancel()
        if self._accepted is not None:  # it has not begun, and never will
            self._accepted.close()

    shutdown = give_way
    """What a server does that stops."""

    def leave(self) -> None:
        """It is over: the connection counts for itself."""
        self._connection.connections.discard(self)
        self._connection.idle.pop(self, None)

    async def _enter(self) -> None:
        to, accepted, self._accepted = self._connection, self._accepted, None
        assert accepted is not None
        try:
            await to.loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, to),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._limit_s,
                ssl_shutdown_timeout=CLOSED_S,
            )
        except OSError:
            pass  # no TLS, a certificate that is not known here, or nothing at all
        finally:
            self.leave()
