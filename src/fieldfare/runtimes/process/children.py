"""A child process of the supervisor: in a process group of its own, its output in a log file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fieldfare.runtimes.process.logs import LOG_VARIABLE, set_aside_large
from fieldfare.runtimes.process.parents import PARENT_VARIABLE, signal_at_parents_death

STOP_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to run a child process, and how to tell whether it works.

    Parameters
    ----------
    name
        Name on the console.
    command
        Program and arguments.
    log
        File to which its output is appended.
    is_ready
        Returns whether the process with a given id is ready. Called a few times per second; must be quick.
    stop_s
        Seconds to exit after SIGTERM; then its whole group is killed.
    environment
        Additional environment variables.
    fatal_codes
        Exit codes after which a restart is useless.
    find_hang
        Takes the process's id and seconds of a monotonic clock; returns how the process hangs, or "". Called
        a few times per second.
    descriptors
        File descriptors that it inherits.
    may_start
        Returns whether its prerequisites are met. Called a few times per second until it is true.
    """

    name: str
    command: Sequence[str]
    log: Path
    is_ready: Callable[[int], bool]
    stop_s: float = 15.0
    environment: Mapping[str, str] = field(default_factory=dict)
    fatal_codes: frozenset[int] = frozenset()
    descriptors: tuple[int, ...] = ()
    find_hang: Callable[[int, float], str] = lambda pid, now_s: ""
    may_start: Callable[[], bool] = lambda: True


class Child:
    """A process that was started from a `ChildSpec`."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.is_ready = False
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        set_aside_large(spec.log)
        with open(spec.log, "ab", buffering=0) as log:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            with suppress(OSError):  # The disk may be full; the process can run without its log.
                log.write(f"---- {stamp} starting {spec.name}\n".encode())
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                spec.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    **spec.environment,
                    PARENT_VARIABLE: str(os.getpid()),
                    LOG_VARIABLE: str(spec.log.absolute()),
                },
                process_group=0,
                pass_fds=spec.descriptors,
                preexec_fn=_prepare(signal_at_parents_death()),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code (negative: the number of the signal that killed it), None while it runs."""
        return self._process.poll()

    def has_become_ready(self) -> bool:
        """Return whether the process has become ready since the last call."""
        if not self.is_ready and self.spec.is_ready(self.pid):
            self.is_ready = True
            return True
        return False

    def reload(self) -> None:
        """Tell the process to read its files again, and to reopen its log."""
        self._process.send_signal(signal.SIGHUP)

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stop the process with SIGTERM, and kill it and its group after `stop_s`, or at once in a hurry."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + self.spec.stop_s
        while self._process.poll() is None and time.monotonic() < deadline_s and not hurry():
            time.sleep(STOP_LOOK_EVERY_S)
        self.sweep()

    def sweep(self) -> None:
        """Kill the rest of the group: a process must not outlive the one that it worked for."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self._process.wait()

    def last_lines(self, count: int = 20) -> list[str]:
        """Return the last lines that this process wrote to its log."""
        with open(self.spec.log, "rb") as log:
            size_bytes = log.seek(0, os.SEEK_END)
            begins = self._log_start if self._log_start <= size_bytes else 0
            log.seek(max(begins, size_bytes - 16384))
            return log.read().decode(errors="replace").splitlines()[-count:]


def _prepare(then: Callable[[], None] | None) -> Callable[[], None]:
    """Return the function that a child calls between fork and exec: it ignores SIGHUP until handled."""

    def prepare() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if then is not None:
            then()

    return prepare


def describe_exit(code: int) -> str:
    """Return a description of an exit code."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"
