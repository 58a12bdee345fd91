"""Fork detection: connections, threads and locks created before a fork do not work in the child process."""

from __future__ import annotations

import os
import threading


class _Forks:
    """Counts the forks between this process and the one that imported this module.

    Reading a counter for each published event is faster than ``os.getpid()``, a system call.
    """

    def __init__(self) -> None:
        self.count = 0
        self.starting_over = threading.Lock()
        """Held while a client gets new connections: a thread of the parent may hold the client's own lock."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.count += 1
        self.starting_over = threading.Lock()


FORKS = _Forks()
