"""TLS handshakes, within the limits of all connections.

A server that listens with TLS does not see a connection before its handshake is complete. A client that never
completes one would hold a connection, and an open file, for a minute, and could hold any number of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import Any, Protocol, cast

from fieldfare.gateway.admission.evictable import Evictable, address_of

SURPLUS_MAX = 100
"""Maximum connections beyond the limit that are told why they are refused; more are closed at once."""

CLOSED_S = 2.0
"""Maximum seconds to wait for the client's part of a TLS close; then the connection is dropped."""


class Entered(Protocol):
    """The protocol that handles a connection after its handshake, with the state of its server."""

    connections: set[Any]
    connections_max: int
    evictable: Evictable
    loop: asyncio.AbstractEventLoop
    handshake: Handshake | None


class Handshake(asyncio.Protocol):
    """Counts as an idle connection until the TLS handshake is complete.

    Parameters
    ----------
    connection
        The protocol of the connection after the handshake.
    tls
        The server's TLS context.
    limit_s
        Maximum seconds of a handshake.
    """

    def __init__(self, connection: Entered, tls: ssl.SSLContext, limit_s: float) -> None:
        self._connection = connection
        connection.handshake = self
        self._tls = tls
        self._limit_s = limit_s
        self._task: asyncio.Task[None] | None = None
        self._accepted: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not with start_tls: the client's first bytes may have been read, as plain text, before it starts.
        plain, to = transport.get_extra_info("socket"), self._connection
        try:
            accepted = socket.socket(plain.family, plain.type, plain.proto, fileno=os.dup(plain.fileno()))
        except OSError:
            return  # no more files may be open
        finally:
            transport.abort()  # type: ignore[attr-defined]
        accepted.setblocking(False)
        to.connections.add(self)
        is_room = to.evictable.evict_one_connection(to.connections, to.connections_max)
        if not is_room and len(to.connections) > to.connections_max + SURPLUS_MAX:
            to.connections.discard(self)
            accepted.close()
            return
        to.evictable.add(self, address_of(transport.get_extra_info("peername")))
        self._accepted = accepted
        self._task = to.loop.create_task(self._enter())

    def evict_connection(self) -> None:
        self.finish()
        if self._task is not None:
            self._task.cancel()
        if self._accepted is not None:  # the handshake has not started, and never will
            self._accepted.close()

    shutdown = evict_connection
    """Called for each connection of a server that stops."""

    def finish(self) -> None:
        """The handshake is over: the connection counts for itself from here on."""
        self._connection.connections.discard(self)
        self._connection.evictable.discard(self)

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
            pass  # no TLS, an unknown certificate, or no data at all
        finally:
            self.finish()
