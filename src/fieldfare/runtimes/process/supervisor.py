"""A supervisor: processes that are started, watched, started again when they die or hang, and stopped.

It knows a list of children (see `ChildSpec`), and nothing of what they do.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from fieldfare.runtimes.process.children import Child, ChildSpec, describe_exit
from fieldfare.runtimes.process.logs import set_aside_large
from fieldfare.runtimes.process.restarts import Restarts, RestartSettings

EXIT_GAVE_UP = 1
LOOK_EVERY_S = 0.1
LOGS_EVERY_S = 10.0


class Supervisor:
    """Starts children in order, starts them again when they die or hang, stops them in order.

    It never gives one up, except for an exit code that says that no other start can do better: a disk that
    is full or a Java that is missing may be put right while the others go on.

    Parameters
    ----------
    specs
        The children; stopped in the same order, one after the other.
    say
        Gets one short line for the console at a time.
    restarts
        How patient it is.
    clock
        Seconds of a clock that never goes back.
    logs
        A folder whose log files are kept from growing for ever.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        say: Callable[[str], None],
        restarts: RestartSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        logs: Path | None = None,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._tell = say
        self._clock = clock
        self._children: dict[str, Child] = {}
        self._restarts = {name: Restarts(restarts or RestartSettings()) for name in self._specs}
        self._start_at_s: dict[str, float] = dict.fromkeys(self._specs, 0.0)
        self._logs = logs
        self._logs_due_s = 0.0
        self._stop_signals = 0
        self._announced = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)

    def request_stop(self) -> None:
        """Ask for a stop, as SIGTERM does; a second time: at once. May be called from a signal handler."""
        self._stop_signals += 1
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass

    def run(self) -> int:
        """Run until stopped (0), or until a child says that it can never start (`EXIT_GAVE_UP`)."""
        handlers = {number: signal.signal(number, self._on_signal) for number in _STOP_SIGNALS}
        handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._on_child)
        try:
            code = self._watch()
        finally:
            self._stop_all()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(self._wake_read)
            os.close(self._wake_write)
        self._say("stopped")
        return code

    def _say(self, line: str) -> None:
        with suppress(OSError):  # The console may be a file on a full disk.
            self._tell(line)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request_stop()

    def _on_child(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._wake_write, b"c")
        except (BlockingIOError, OSError):
            pass

    def _watch(self) -> int:
        while not self._stop_signals:
            now_s = self._clock()
            for name, spec in self._specs.items():
                child = self._children.get(name)
                if child is None:
                    if now_s >= self._start_at_s[name]:
                        self._start(name, spec, now_s)
                    continue
                if child.look():
                    self._restarts[name].ready(now_s)
                    self._say(f"{name} ready (process {child.pid})")
                    self._announce()
                code = child.exit_code()
                if code is not None and not self._survives(name, child, code, now_s):
                    return EXIT_GAVE_UP
                if code is None and (hang := spec.find_hang(child.pid, now_s)):
                    self._say(f"{name} {hang}; ending it")
                    child.sweep()
            self._look_after_logs(now_s)
            self._sleep(LOOK_EVERY_S)
        self._say("stopping")
        return 0

    def _start(self, name: str, spec: ChildSpec, now_s: float) -> None:
        try:
            self._children[name] = Child(spec)
        except OSError as error:
            # No memory, no process ids, no place for its log: that passes.
            self._start_at_s[name] = now_s + self._restarts[name].died(now_s)
            if self._restarts[name].is_told or self._restarts[name].quick_deaths == 1:
                self._say(f"{name} could not be started: {error}; it is tried again")

    def _look_after_logs(self, now_s: float) -> None:
        if self._logs is not None and now_s >= self._logs_due_s:
            self._logs_due_s = now_s + LOGS_EVERY_S
            for log in self._logs.glob("*.log"):
                set_aside_large(log)

    def _announce(self) -> None:
        ready = all(name in self._children and self._children[name].is_ready for name in self._specs)
        if ready and not self._announced:
            self._announced = True
            self._say("ready")

    def _survives(self, name: str, child: Child, code: int, now_s: float) -> bool:
        """A child has died: plan its restart, or say why there is none."""
        child.sweep()
        del self._children[name]
        restarts = self._restarts[name]
        pause_s = restarts.died(now_s)
        self._start_at_s[name] = now_s + pause_s
        deaths = restarts.quick_deaths
        said = f"{name} {describe_exit(code)}{f', {deaths} times in a row' if deaths > 1 else ''}"
        if code not in child.spec.fatal_codes:
            again = f"starting it again{f' in {pause_s:.0f} s' if pause_s >= 1 else ''}"
            if not restarts.is_told:
                self._say(f"{said}; {again}")
                return True
            self._say(f"{said}; {again}. Its last lines:")
        else:
            self._say(f"{said}; giving up. Its last lines:")
        for line in child.last_lines():
            self._say(f"  | {line}")
        self._say(f"all of it is in {child.spec.log}")
        return code not in child.spec.fatal_codes

    def _stop_all(self) -> None:
        for name in self._specs:
            child = self._children.pop(name, None)
            if child is not None:
                child.stop(hurry=lambda: self._stop_signals > 1)

    def _sleep(self, seconds: float) -> None:
        """Sleep, but wake when a signal comes or a child ends."""
        if select.select([self._wake_read], [], [], seconds)[0]:
            try:
                os.read(self._wake_read, 4096)
            except BlockingIOError:
                pass


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
