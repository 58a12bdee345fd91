"""Connections that are opened faster than one per round of the event loop."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from fieldfare.gateway.admission.acceptor import ACCEPTED_MAX, Acceptor
from fieldfare.runtimes.process.listening import listening_socket

CONNECTIONS = 10 * ACCEPTED_MAX
DEADLINE_S = 90


@pytest.fixture
def listener() -> socket.socket:
    return listening_socket("127.0.0.1", 0)


def test_waiting_connections_do_not_each_take_a_turn_of_the_event_loop(listener: socket.socket) -> None:
    """Those of one space kept the others' waiting for a quarter of a minute."""
    clients = [socket.create_connection(listener.getsockname()) for _ in range(CONNECTIONS)]
    made: list[asyncio.BaseTransport] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    async def count_turns() -> int:
        server = await asyncio.get_running_loop().create_server(Connection, sock=listener)
        acceptor = Acceptor(listener, Connection)
        turns = 0
        while len(made) < CONNECTIONS:
            turns += 1
            await asyncio.sleep(0)
        acceptor.close()
        server.close()
        for transport in made:
            transport.abort()  # type: ignore[attr-defined]
        return turns

    turns = uvloop.run(asyncio.wait_for(count_turns(), DEADLINE_S))
    for client in clients:
        client.close()
    assert turns < CONNECTIONS / 4


def test_a_closed_acceptor_leaves_connections_waiting(listener: socket.socket) -> None:
    async def accept_then_close() -> bool:
        acceptor = Acceptor(listener, asyncio.Protocol)
        acceptor.close()
        with socket.create_connection(listener.getsockname()):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            listener.setblocking(False)
            connection, _ = listener.accept()
            connection.close()
        return True

    assert uvloop.run(asyncio.wait_for(accept_then_close(), DEADLINE_S))
    listener.close()
