"""Ending a child process when its parent ends, however that happens."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

PARENT_VARIABLE = "FIELDFARE_PARENT_PID"
DAEMON_VARIABLE = "FIELDFARE_DAEMON_BEGUN_ANEW"
"""Set in a daemon of Python workers that has taken the place of one that compiled kernels."""
WATCH_EVERY_S = 1.0
_PR_SET_PDEATHSIG = 1


def signal_at_parents_death() -> Callable[[], None] | None:
    """Return a function that a child calls between fork and exec, to get SIGTERM (Linux only)."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None

    def set_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    return set_signal


def end_with_parent() -> None:
    """Watch the parent from a thread, and stop this process with SIGTERM when the parent has ended.

    Works where the kernel sends no signal, and closes the gap between a fork and `signal_at_parents_death`.
    Does nothing in a process that no supervisor started.
    """
    parent = os.environ.get(PARENT_VARIABLE, "")
    if not parent.isdigit():
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(WATCH_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="fieldfare-parent-watch", daemon=True).start()
