"""Signals that reach a service before its supervisor handles them: while it checks settings and files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from fieldfare.runtimes.process.supervisor import has_terminal

STOPPED = b"fieldfare: stopped\n"


@contextmanager
def early_signals() -> Iterator[None]:
    """Make SIGTERM and SIGINT end a start with exit code 0, and SIGHUP end it only if its terminal is closed.

    By default SIGHUP and SIGUSR2, which ask a service to reload and to restart, would kill a starting one,
    and the first process of a container would ignore SIGTERM. A start can be ended anywhere: it must survive
    ``kill -9``, too.
    """
    before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGINT)}
    # A request for a restart: what starts now is new.
    before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # As nohup sets it.
        had_terminal = has_terminal()

        def stop_without_terminal(number: int, frame: FrameType | None) -> None:
            if had_terminal and not has_terminal():
                _stop(number, frame)

        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, stop_without_terminal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    with suppress(OSError):  # Not with print, which the signal may have interrupted.
        os.write(2, STOPPED)
    raise SystemExit(0)
