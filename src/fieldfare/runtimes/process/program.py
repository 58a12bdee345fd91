"""What the processes of the service have in common when they start and when they are asked to stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from fieldfare.runtimes.process.locks import FileLock
from fieldfare.runtimes.process.parents import PARENT_VARIABLE, end_with_parent
from fieldfare.storage.private import keep_private

EXIT_FAILED = 1
EXIT_FORMAT = 4
"""The data directory is of a format that no other start will know either."""


def begin(name: str) -> threading.Event:
    """Log to standard error as `name`; gives what is set when the process shall stop.

    That is at SIGTERM or SIGINT, or when the process that started it has gone. What it writes is private.
    """
    keep_private()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO,
        format=f"%(asctime)s.%(msecs)03d %(levelname)s {name}: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )  # fmt: skip
    stop = threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    end_with_parent()
    return stop


def only_one(lock: Path, wait_s: float) -> FileLock:
    """The lock that a process of which there is one on a data directory holds as long as it runs.

    One supervisor works on a directory: another's child that does not end meanwhile hangs.
    """
    return FileLock(lock, wait_s, end_holder=PARENT_VARIABLE in os.environ)
