"""One process that the supervisor looks after: in a group of its own, its output in a log file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fieldfare.runtimes.process.logs import set_aside_large
from fieldfare.runtimes.process.parents import PARENT_VARIABLE, signal_at_parents_death

STOP_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run and how to know that it works.

    Parameters
    ----------
    name
        What the console calls it.
    command
        Program and arguments.
    log
        Where its output is appended.
    is_ready
        Given the process's id, whether it is ready. Asked a few times a second; must be quick.
    stop_s
        Seconds it gets to end after SIGTERM; then its whole group is killed.
    fatal_codes
        Exit codes after which starting it again makes no sense.
    find_hang
        Given the process's id and the seconds of a clock that never goes back, how it hangs, or nothing.
        Asked a few times a second.
    descriptors
        File descriptors that it inherits.
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


class Child:
    """A process that was started from a `ChildSpec`."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.is_ready = False
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        set_aside_large(spec.log)
        with open(spec.log, "ab", buffering=0) as log:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            with suppress(OSError):  # The disk is full; the process may do without its log.
                log.write(f"---- {stamp} starting {spec.name}\n".encode())
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                spec.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **spec.environment, PARENT_VARIABLE: str(os.getpid())},
                process_group=0,
                pass_fds=spec.descriptors,
                preexec_fn=signal_at_parents_death(),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """The exit code (minus the signal's number when one killed it), None while it runs."""
        return self._process.poll()

    def look(self) -> bool:
        """Whether it has become ready since the last look."""
        if not self.is_ready and self.spec.is_ready(self.pid):
            self.is_ready = True
            return True
        return False

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """End the process, politely unless there is a hurry, and whatever is left of its group."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + self.spec.stop_s
        while self._process.poll() is None and time.monotonic() < deadline_s and not hurry():
            time.sleep(STOP_LOOK_EVERY_S)
        self.sweep()

    def sweep(self) -> None:
        """Kill what is left of the group: a process must not outlive the one that it worked for."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self._process.wait()

    def last_lines(self, count: int = 20) -> list[str]:
        """The end of what this process wrote."""
        with open(self.spec.log, "rb") as log:
            size_bytes = log.seek(0, os.SEEK_END)
            begins = self._log_start if self._log_start <= size_bytes else 0
            log.seek(max(begins, size_bytes - 16384))
            return log.read().decode(errors="replace").splitlines()[-count:]


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"
