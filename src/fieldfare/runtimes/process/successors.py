"""A process that replaces a running one: it prepares, reports that, and waits until it may take over.

The supervisor holds the other end of a socket pair. A process that replaces none has no such socket, and
does not wait.
"""

from __future__ import annotations

import os
import select
import socket
import threading

TURN_VARIABLE = "FIELDFARE_TURN_FD"
"""Environment variable with the successor's end of the socket pair."""

PREPARED, TURN = b"p", b"t"
LOOK_S = 0.5


def is_successor() -> bool:
    """Return whether this process replaces a running one, and has not taken over yet."""
    return TURN_VARIABLE in os.environ


def wait_for_turn(stop: threading.Event | None = None) -> bool:
    """Report that this process is prepared, and wait until its predecessor has been told to stop.

    Parameters
    ----------
    stop
        Ends the wait. Without it, signals do.

    Returns
    -------
    bool
        Whether it may take over: False if the supervisor has given up, or `stop` is set.
    """
    number = os.environ.pop(TURN_VARIABLE, None)
    if number is None:
        return True
    with socket.socket(fileno=int(number)) as turn:
        try:
            turn.send(PREPARED)
            while stop is None or not stop.is_set():
                if select.select([turn], [], [], LOOK_S)[0]:
                    return turn.recv(1) == TURN
        except OSError:  # The supervisor has ended.
            pass
    return False
