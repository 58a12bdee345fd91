"""Replacing the program of a running supervisor by a newer one, in the same process (exec).

The process keeps its id, so its children stay its children, and a service manager notices nothing. A variable
of the environment tells the new program which files and children it inherits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from fieldfare.runtimes.process.children import RunningChild

INHERITED_VARIABLE = "FIELDFARE_INHERITED"
CHECK_VARIABLE = "FIELDFARE_CHECK_START"
"""Environment variables with an `Inheritance`: of a program that continues for another one, and of one that
shall only check whether it could."""

CHECK_MAX_S = 120.0
INITIAL_ENVIRONMENT = dict(os.environ)
"""The environment with which this process was started, before settings of a file were added to it."""

_WAITING = (signal.SIGHUP, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
"""Signals that wait until the new program handles them. They would end it before, and its children would be
killed; the first process of a container would lose them."""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The files and children that a program leaves to the one that replaces it.

    Parameters
    ----------
    data
        The data directory.
    address
        The host and port that the service was told to listen on.
    lock, listener
        File descriptors of the directory's lock and of the listening socket.
    children
        The running children by name.
    restarts, deaths
        Number of restarts so far, and of each child's deaths.
    is_restart
        Whether the program replaces another one.
    ends_with_terminal
        Whether the service ends when its terminal is closed.
    """

    data: str
    address: tuple[str, int]
    lock: int
    listener: int
    ends_with_terminal: bool
    children: Mapping[str, RunningChild] = field(default_factory=dict)
    restarts: int = 0
    deaths: Mapping[str, int] = field(default_factory=dict)
    is_restart: bool = False

    @classmethod
    def taken(cls, environment: MutableMapping[str, str], variable: str) -> Inheritance | None:
        """Remove and return the inheritance in a variable of the environment; None if there is none."""
        text = environment.pop(variable, None)
        return None if text is None else msgspec.json.decode(text, type=cls)

    def encoded(self) -> str:
        """Return it as the text of a variable."""
        return msgspec.json.encode(self).decode()

    def execute(self, was_signalled: Callable[[], bool]) -> None:
        """Replace this process's program, unless it was signalled; OSError if that is not possible."""
        environment = {**INITIAL_ENVIRONMENT, INHERITED_VARIABLE: self.encoded()}
        descriptors = self.lock, self.listener
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITING)
        try:
            if was_signalled():  # Handlers have run for all signals that were not blocked.
                return
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            os.execve(sys.executable, _command(), environment)
        finally:  # It failed.
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ProgramCheck:
    """A run of the program as it is installed now, which only checks whether it could continue.

    Parameters
    ----------
    inheritance
        What it would inherit.
    """

    def __init__(self, inheritance: Inheritance) -> None:
        self._process = subprocess.Popen(
            _command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**INITIAL_ENVIRONMENT, CHECK_VARIABLE: inheritance.encoded()},
            process_group=0,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._printed = b""
        self._until_s = time.monotonic() + CHECK_MAX_S

    @property
    def pid(self) -> int:
        return self._process.pid

    def problem(self) -> str | None:
        """Return why the program could not continue, empty if it could; None while it is being checked."""
        self._read()
        code = self._process.poll()
        if code is None:
            if time.monotonic() < self._until_s:
                return None
            self.stop()
            return f"the new program did not start within {CHECK_MAX_S:.0f} s"
        self._read()
        if code == 0:
            return ""
        lines = [_message(line.strip()) for line in self._printed.decode(errors="replace").splitlines()]
        return f"the new program cannot start: {_reason_in(lines) or f'exit code {code}'}"

    def stop(self) -> None:
        """Kill it if it runs."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._printed = (self._printed + (self._process.stdout.read() or b""))[-65536:]


def _message(line: str) -> str:
    """Return the text of a line of the console, which may be a JSON object."""
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(line)["message"])
    return line.removeprefix("fieldfare: ")


def _reason_in(lines: Sequence[str]) -> str:
    """Return what a program printed as its error; else its last line."""
    begins = next((number for number, line in enumerate(lines) if line.startswith("error: ")), None)
    if begins is None:
        return next((line for line in reversed(lines) if line), "")
    return "; ".join(filter(None, lines[begins:])).removeprefix("error: ")


def receive_signals() -> None:
    """Receive the signals that have waited since the program before this one was replaced."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITING)


def _command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]
