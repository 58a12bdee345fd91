"""A child process of the supervisor: in a process group of its own, its output in a log file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fieldfare.runtimes.process.logs import LOG_VARIABLE, set_aside_large
from fieldfare.runtimes.process.parents import PARENT_VARIABLE, signal_at_parents_death
from fieldfare.runtimes.process.successors import PREPARED, TURN, TURN_VARIABLE

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


class AdoptedProcess:
    """A child process that this process started before it replaced its own program (exec)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait until the process ends; return its exit code."""
        return self._wait(0)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


@dataclass(frozen=True, slots=True)
class RunningChild:
    """The facts about a running child that a supervisor needs if it did not start the child itself."""

    pid: int
    log_start: int
    is_ready: bool


class Child:
    """A process that was started from a `ChildSpec`.

    Parameters
    ----------
    spec
        How to run it.
    running
        The process, if it runs already.
    turn
        The child's end of a socket pair, if it replaces a running process; see `successors`.
    """

    def __init__(
        self, spec: ChildSpec, *, running: RunningChild | None = None, turn: socket.socket | None = None
    ) -> None:
        self.spec = spec
        self.is_ready = False
        self._process: subprocess.Popen[bytes] | AdoptedProcess
        if running is not None:
            self.is_ready, self._log_start = running.is_ready, running.log_start
            self._process = AdoptedProcess(running.pid)
            return
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
                    **({} if turn is None else {TURN_VARIABLE: str(turn.fileno())}),
                },
                process_group=0,
                pass_fds=(*spec.descriptors, *(() if turn is None else (turn.fileno(),))),
                preexec_fn=_prepare(signal_at_parents_death()),
            )

    @property
    def running(self) -> RunningChild:
        """The facts about the process for another supervisor."""
        return RunningChild(self.pid, self._log_start, self.is_ready)

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

    def request_stop(self) -> None:
        """Send SIGTERM."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stop the process with SIGTERM, and kill it and its group after `stop_s`, or at once in a hurry."""
        self.request_stop()
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


class Successor:
    """A child that prepares to replace a running one of the same `ChildSpec`."""

    def __init__(self, spec: ChildSpec) -> None:
        self._own, theirs = socket.socketpair()
        self._own.setblocking(False)
        try:
            with theirs:
                self.child = Child(spec, turn=theirs)
        except OSError:
            self._own.close()
            raise
        self._is_prepared = False

    def is_prepared(self) -> bool:
        """Return whether it waits for its turn."""
        if not self._is_prepared:
            try:
                self._is_prepared = self._own.recv(1) == PREPARED
            except OSError:  # Nothing yet, or it has ended.
                return False
        return self._is_prepared

    def take_over(self) -> Child:
        """Let it take over, once its predecessor has been told to stop; return it."""
        with suppress(OSError), self._own:  # It may have ended; its supervisor will notice.
            self._own.send(TURN)
        return self.child

    def give_up(self) -> None:
        """Kill it."""
        self._own.close()
        self.child.sweep()


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
