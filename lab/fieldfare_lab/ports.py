"""Ports for programs that must know theirs before they open them."""

from __future__ import annotations

import socket
from contextlib import suppress
from random import Random

_FIRST, _END = 10_000, 30_000
_found: set[int] = set()


def find_free_port() -> int:
    """Return a port of the loopback that is free, and that this process has not been given before.

    It is below those that the kernel hands out: with one of them, another program's socket could take it
    before it is opened.
    """
    draw = Random()
    while True:
        port = draw.randrange(_FIRST, _END)
        if port not in _found:
            with suppress(OSError), socket.socket() as tried:
                tried.bind(("127.0.0.1", port))
                _found.add(port)
                return port
