"""Messages to the service manager that started the service: systemd's ``sd_notify`` protocol.

systemd passes the address of a datagram socket in ``NOTIFY_SOCKET`` (a path, or ``@`` and an abstract name),
and in ``WATCHDOG_USEC`` the interval within which it expects a sign of life. See sd_notify(3).
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

ADDRESS, INTERVAL, WATCHED = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class ServiceManager:
    """The service manager of this process; without one, nothing is sent.

    Parameters
    ----------
    environment
        The process's environment; the manager's variables are removed from it, as they are for no child.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        found = {name: environment.pop(name, "") for name in (ADDRESS, INTERVAL, WATCHED)}
        self._address = found[ADDRESS].replace("@", "\0", 1) if found[ADDRESS][:1] in ("/", "@") else ""
        is_watched = found[WATCHED] in ("", str(os.getpid())) and found[INTERVAL].isdecimal()
        self._every_s = int(found[INTERVAL]) / 2e6 if is_watched and int(found[INTERVAL]) else math.inf
        self._due_s = -math.inf

    def ready(self) -> None:
        """Report that the service answers and matches events."""
        self._send("READY=1")

    def status(self, line: str) -> None:
        """Report a line for ``systemctl status``."""
        self._send(f"STATUS={line}")

    def stopping(self) -> None:
        """Report that the service is stopping."""
        self._send("STOPPING=1")

    def alive(self, now_s: float) -> None:
        """Send a sign of life if one is due: twice in each interval."""
        if self._every_s < math.inf and now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sent,
        ):
            sent.setblocking(False)
            sent.sendto(text.encode(), self._address)
