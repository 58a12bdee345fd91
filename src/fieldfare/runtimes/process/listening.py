"""The listening socket of a service's gateway."""

from __future__ import annotations

import socket

WAITING_MAX = 2048
UNSENT_BYTES = 32 << 10
"""Bytes that the system buffers for a connection whose client does not read (else up to 4 MiB).

More would cost memory, and the work of encoding, for each stream that is not read, without a benefit; less
costs more wake-ups.
"""


class CannotListen(Exception):
    """The address cannot be used; the message names it and the reason."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; options set here apply to the connections that it accepts.

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


def inherited_listener(descriptor: int) -> socket.socket:
    """Return a listening socket that the program before this one opened in the same process."""
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    return listener
