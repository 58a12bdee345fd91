"""The listening socket of a service's gateway."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
    with _explained(host, port):
        listener = _bound(host, port)
        listener.listen(WAITING_MAX)
    return listener


def share_port(descriptor: int) -> None:
    """Let a `next_listener` use the port of a listening socket."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def next_listener(host: str, port: int) -> socket.socket:
    """Return a socket for a service that shall listen elsewhere, perhaps on other addresses of its port.

    It does not listen before the gateway that uses it does: until then clients connect to the listening one.

    Raises
    ------
    CannotListen
        The address is in use by another service, not of this machine, or not allowed.
    """
    with _explained(host, port):
        return _bound(host, port, socket.SO_REUSEPORT)


def _bound(host: str, port: int, *options: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        for option in (socket.SO_REUSEADDR, *options):
            found.setsockopt(socket.SOL_SOCKET, option, 1)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        found.bind((host, port))
    except OSError:
        found.close()
        raise
    return found


@contextmanager
def _explained(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def inherited_listener(descriptor: int) -> socket.socket:
    """Return a listening socket that the program before this one opened in the same process."""
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    return listener
