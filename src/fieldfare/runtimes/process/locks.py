"""Locks that end with their holder, and killing what a killed process left running."""

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
    """Another process held a lock for longer than the caller waits."""


class FileLock:
    """An exclusive lock on a file, held until it is released or the process ends, however it ends.

    Parameters
    ----------
    path : Path
        The file; created if it does not exist, and never removed.
    wait_s : float
        Seconds to wait for another holder.
    end_holder : bool
        Kill a holder that does not release the lock within `wait_s`: it hangs, and nothing else would end it.

    Attributes
    ----------
    descriptor : int
        The file descriptor that holds the lock; -1 while it is not held.
    """

    def __init__(self, path: Path, wait_s: float, *, end_holder: bool = False) -> None:
        self._path = path
        self._wait_s = wait_s
        self._end_holder = end_holder
        self.descriptor = -1

    @classmethod
    def inherited(cls, path: Path, descriptor: int) -> FileLock:
        """Return a lock that the program before this one took in the same process."""
        found = cls(path, 0.0)
        os.set_inheritable(descriptor, False)
        found.descriptor = descriptor
        return found

    def acquire(self) -> None:
        """Take the lock; LockTimeoutError if another process holds it for too long."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until_s = time.monotonic() + self._wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    if self._end_holder:
                        end_process_of(self._path, 0.0)
                        self._end_holder = False
                        continue
                    os.close(descriptor)
                    raise LockTimeoutError(
                        f"{self._path} has been locked by another process for {self._wait_s:g} s"
                    ) from None
                time.sleep(_POLL_S)
            else:
                self.descriptor = descriptor
                # The holder's id is for `end_holder` and for users; the lock works without it on a full disk.
                with contextlib.suppress(OSError):
                    write_pid(self._path, os.getpid())
                return

    def release(self) -> None:
        """Release the lock."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_pid(pid_file: Path, pid: int) -> None:
    """Note a running process in a file, so that `end_process_of` finds exactly this one."""
    pid_file.write_text(f"{pid} {birth_of(pid)}")


def end_process_of(pid_file: Path, wait_s: float) -> None:
    """Wait for the process noted in a file to end, and kill it if it does not.

    Process ids are reused: an id that belongs to another process by now, also after a restart of the machine,
    is ignored.

    Parameters
    ----------
    pid_file : Path
        A file of `write_pid`; if it is missing or torn, there is nothing to wait for.
    wait_s : float
        Seconds after which the process is killed.
    """
    try:
        number, birth = pid_file.read_text().split()
        pid = int(number)
    except (OSError, ValueError):
        return
    if pid == os.getpid():
        return
    until_s = time.monotonic() + wait_s
    while birth_of(pid) == birth:
        if time.monotonic() >= until_s:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            until_s += max(wait_s, 1.0)
        time.sleep(_POLL_S)


def birth_of(pid: int) -> str:
    """Return an identifier that differs between processes with the same id; empty if it has ended."""
    try:
        # The name, in parentheses, may hold anything; what follows begins with field 3, the state.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        if Path("/proc/self").exists():
            return ""
    else:
        return "" if fields[0] in "ZX" else f"{boot}/{fields[19]}"
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return "-".join(shown.stdout.split())
