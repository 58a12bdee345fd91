"""Preparation before the first start: compiles kernels, for minutes, with progress on the console."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from fieldfare.runtimes.process.parents import PARENT_VARIABLE, signal_at_parents_death

TIME_MAX_S = 1800.0
"""Maximum seconds of a preparation; then it is killed, and processes compile the rest on demand."""


class Preparation:
    """A program that runs once, before some of the service's processes are started.

    Parameters
    ----------
    command
        The program, whose output lines are relayed. None: there is nothing to do.
    is_ready
        Returns whether it need not run. Called once, when the first process that waits for it could start.
    say
        Receives the lines.
    """

    def __init__(
        self, command: Sequence[str] | None, is_ready: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        self._command = command
        self._is_ready = is_ready
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._is_done = False
        self._printed = b""
        self._until_s = 0.0

    def is_done(self) -> bool:
        """Start the program if necessary; return whether it is finished. To be called repeatedly."""
        if self._is_done:
            return True
        if self._process is None:
            if self._command is None or self._is_ready():
                self._is_done = True
            else:
                self._start(self._command)
            return self._is_done
        self._relay()
        if self._process.poll() is not None or time.monotonic() >= self._until_s:
            self.stop()
        return self._is_done

    def stop(self) -> None:
        """Kill the program if it runs."""
        if self._process is not None and not self._is_done:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()
            self._relay()
        self._is_done = True

    def _start(self, command: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
                process_group=0,
                preexec_fn=signal_at_parents_death(),
            )
        except OSError:
            self._is_done = True
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._until_s = time.monotonic() + TIME_MAX_S

    def _relay(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._printed += self._process.stdout.read() or b""
        *lines, self._printed = self._printed.split(b"\n")
        for line in lines:
            self._say(line.decode(errors="replace"))
