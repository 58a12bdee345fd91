"""The socket on which a service's gateway is reached."""

from __future__ import annotations

import socket

WAITING_MAX = 2048
UNSENT_BYTES = 32 << 10
"""So much the system takes for a connection whose reader makes no room. It would else be 4 MiB: memory,
and the work of encoding it, for each stream that nobody reads, while others wait. Who reads makes room, so
less than this costs more wake-ups, and more brings nothing."""


class CannotListen(Exception):
    """The address cannot be had; the message names it and says why."""


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; what is set here holds for the connections that it accepts.

    Raises
    ------
    CannotListen
        The address is in use, not of this machine, or not allowed.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    try:
        listener.bind((host, port))
        listener.listen(WAITING_MAX)
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listener
