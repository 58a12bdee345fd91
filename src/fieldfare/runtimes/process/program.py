"""Start and stop, common to all processes of the service."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fieldfare.runtimes.process.locks import FileLock
from fieldfare.runtimes.process.log_lines import configure_logging
from fieldfare.runtimes.process.logs import reopen_log
from fieldfare.runtimes.process.parents import PARENT_VARIABLE, end_with_parent
from fieldfare.storage.private import keep_private

EXIT_FAILED = 1
EXIT_FORMAT = 4
"""Exit code for a data directory of an unknown format: a restart would fail too."""


def begin(name: str) -> threading.Event:
    """Configure logging to standard error as `name`; return an event that is set when to stop.

    It is set at SIGTERM or SIGINT, or when the parent process has ended. At SIGHUP the log is reopened. Files
    that the process creates are private.
    """
    keep_private()
    configure_logging(name)
    stop = threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGHUP, lambda number, frame: reopen_log())
    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    end_with_parent()
    return stop


def only_one(lock: Path, wait_s: float) -> FileLock:
    """Return the lock that the only process of its kind on a data directory holds as long as it runs.

    Under a supervisor, a holder that does not end in time is killed: it is a hung child of an earlier
    supervisor.
    """
    return FileLock(lock, wait_s, end_holder=PARENT_VARIABLE in os.environ)


def end_process(code: int) -> NoReturn:
    """End this process without Python's own tidying: a successor would wait for it for most of a second."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
