"""One process at a time: locks that end with their holder, and an end for what a killed one left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

_POLL_S = 0.05


class LockTimeoutError(Exception):
    """Somebody else held a lock for longer than one was willing to wait."""


class FileLock:
    """An exclusive lock on a file, held until it is released or the process ends, however it ends.

    Parameters
    ----------
    path : Path
        The file; made if it is not there, and never removed.
    wait_s : float
        How long to wait for another holder.
    """

    def __init__(self, path: Path, wait_s: float) -> None:
        self._path = path
        self._wait_s = wait_s
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock; LockTimeoutError when somebody else has it for too long."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        until_s = time.monotonic() + self._wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    os.close(descriptor)
                    raise LockTimeoutError(f"{self._path} is locked since {self._wait_s:g} s") from None
                time.sleep(_POLL_S)
            else:
                self._descriptor = descriptor
                return

    def release(self) -> None:
        """Let go of the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def end_process_of(pid_file: Path, mark: str, wait_s: float) -> None:
    """Wait for the process that a file names to end, and kill it when it does not.

    Parameters
    ----------
    pid_file : Path
        What the predecessor wrote; without it there is nothing to wait for.
    mark : str
        What the process must have in its command line to be the one that is meant: numbers are used again.
    wait_s : float
        How long it may take until it is killed.
    """
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return
    until_s = time.monotonic() + wait_s
    while mark in _command_line(pid):
        if time.monotonic() >= until_s:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            until_s += wait_s
        time.sleep(_POLL_S)
    pid_file.unlink(missing_ok=True)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return ""
    shown = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout
