"""A supervisor: starts processes, watches them, restarts them when they die or hang, replaces and stops them.

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
from fieldfare.runtimes.process.notify import ServiceManager
from fieldfare.runtimes.process.reexec import Inheritance, receive_signals
from fieldfare.runtimes.process.restarting import Restarter, ServiceState
from fieldfare.runtimes.process.restarts import Restarts, RestartSettings

EXIT_GAVE_UP = 1
LOOK_EVERY_S = 0.1
"""Pause between two looks at the children, in seconds; a signal and a child's end are seen at once."""
QUIET_LOOK_S = 0.5
"""Pause while all children are ready and none is being replaced, in seconds."""
LOGS_EVERY_S = 10.0


class Supervisor:
    """Starts children in order, restarts them when they die or hang, stops them in order.

    It never gives up, except for an exit code that makes a restart useless: a full disk or a missing Java may
    be corrected while the other children continue.

    Parameters
    ----------
    specs
        The children; stopped in the same order, one after the other.
    say
        Receives one short line for the console at a time.
    restarts
        Pauses and thresholds for restarts.
    clock
        Monotonic clock, in seconds.
    logs
        A folder whose log files are rotated when they grow too large.
    inheritance
        The files of this program that the next one inherits at a restart, and the children that this one
        inherits from the previous program.
    state
        A file for `ServiceState`.
    before_restart
        Called before this program is replaced; it ends processes that are not among the children.
    manager
        The service manager, which hears when all children are ready and that the supervisor is alive.
        Default: the one that started this process, if any.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        say: Callable[[str], None],
        restarts: RestartSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        inheritance: Inheritance,
        state: Path,
        logs: Path | None = None,
        before_restart: Callable[[], None] = lambda: None,
        manager: ServiceManager | None = None,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._tell = say
        self._clock = clock
        running = inheritance.children
        self._children = {
            name: Child(spec, running=running[name]) for name, spec in self._specs.items() if name in running
        }
        self._restarts = {name: Restarts(restarts or RestartSettings()) for name in self._specs}
        self._start_at_s: dict[str, float] = dict.fromkeys(self._specs, 0.0)
        self._logs = logs
        self._manager = manager or ServiceManager(os.environ)
        self._logs_due_s = 0.0
        self._stop_signals = 0
        self._reload_asked = self._reload_again = False
        self._ends_with_terminal = inheritance.ends_with_terminal
        self._announced = False
        deaths = {name: inheritance.deaths.get(name, 0) for name in self._specs}
        self._state = ServiceState(state, inheritance.restarts, deaths)
        self._restarter = Restarter(
            self._specs,
            self._children,
            inheritance,
            self._state,
            self._say,
            was_signalled=lambda: self._stop_signals > 0 or self._reload_asked,
            before=before_restart,
        )
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)

    def request_stop(self) -> None:
        """Request a stop, as SIGTERM does; a second time: at once. May be called from a signal handler."""
        self._stop_signals += 1
        self._wake()

    def request_reload(self) -> None:
        """Request a reload, as SIGHUP does. May be called from a signal handler."""
        self._reload_asked = True
        self._wake()

    def request_restart(self) -> None:
        """Request that all processes are replaced, as SIGUSR2 does. May be called from a signal handler."""
        self._restarter.request()
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # The pipe is full: it wakes already.
            os.write(self._wake_write, b"x")

    def run(self) -> int:
        """Run until stopped (0), or until a child exits with a fatal code (`EXIT_GAVE_UP`)."""
        handlers = {number: signal.signal(number, self._on_signal) for number in _STOP_SIGNALS}
        handlers[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: self.request_reload())
        handlers[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, lambda number, frame: self.request_restart())
        handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._on_child)
        receive_signals()
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
        self._manager.status(line)
        with suppress(OSError):  # The console may be a file on a full disk, or a closed pipe.
            self._tell(line)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request_stop()

    def _on_child(self, number: int, frame: FrameType | None) -> None:
        self._wake()

    def _watch(self) -> int:
        while not self._stop_signals:
            now_s = self._clock()
            self._restarter.step(now_s)
            for name, spec in self._specs.items():
                child = self._children.get(name)
                if child is None:
                    waits = now_s < self._start_at_s[name] or self._restarter.prepares(name)
                    if not waits and spec.may_start():
                        self._start(name, spec, now_s)
                    continue
                if not self._restarter.is_leaving(name) and child.has_become_ready():
                    self._restarts[name].ready(now_s)
                    self._say(f"{name} ready (process {child.pid})")
                    self._announce()
                code = child.exit_code()
                if code is not None and not self._survives(name, child, code, now_s):
                    return EXIT_GAVE_UP
                if code is None and (hang := spec.find_hang(child.pid, now_s)):
                    self._say(f"{name} {hang}; ending it")
                    child.sweep()
            self._reap_orphans()
            self._look_after_logs(now_s)
            self._manager.alive(now_s)
            if self._reload_asked:
                self._reload()
            elif self._reload_again and not self._restarter.is_under_way():
                self._reload_children()
            is_quiet = self._are_ready() and not self._restarter.is_under_way()
            self._sleep(QUIET_LOOK_S if is_quiet else LOOK_EVERY_S)
        self._say("stopping")
        self._manager.stopping()
        return 0

    def _reload(self) -> None:
        self._reload_asked = False
        if self._ends_with_terminal and not has_terminal():
            self._say("the terminal was closed")
            self.request_stop()
            return
        self._say("reloading")
        self._reload_children()

    def _reload_children(self) -> None:
        for child in self._children.values():
            child.reload()
        # A successor that prepares does not handle it yet.
        self._reload_again = self._restarter.is_under_way()

    def _reap_orphans(self) -> None:
        """As the first process of a container: reap processes whose parents ended before them."""
        own = {child.pid for child in self._children.values()} | self._restarter.pids()
        while os.getpid() == 1:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, 0)

    def _start(self, name: str, spec: ChildSpec, now_s: float) -> None:
        try:
            self._children[name] = Child(spec)
        except OSError as error:
            # Lack of memory, of process ids or of disk space is temporary.
            self._start_at_s[name] = now_s + self._restarts[name].died(now_s)
            if self._restarts[name].is_told or self._restarts[name].quick_deaths == 1:
                self._say(f"{name} could not be started: {error}; retrying")

    def _look_after_logs(self, now_s: float) -> None:
        if self._logs is not None and now_s >= self._logs_due_s:
            self._logs_due_s = now_s + LOGS_EVERY_S
            for log in self._logs.glob("*.log"):
                set_aside_large(log)

    def _announce(self) -> None:
        if self._are_ready() and not self._announced:
            self._announced = True
            self._say("ready")
            self._manager.ready()

    def _are_ready(self) -> bool:
        return all(name in self._children and self._children[name].is_ready for name in self._specs)

    def _survives(self, name: str, child: Child, code: int, now_s: float) -> bool:
        """Handle a child's death: schedule its restart and return True, or report why there is none."""
        child.sweep()
        del self._children[name]
        self._state.died(name)
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
        else:
            again = "giving up"
        lines = child.last_lines()
        self._say(f"{said}; {again}{'. Its last lines:' if lines else ''}")
        for line in lines:
            self._say(f"  | {line}")
        self._say(f"its full log is {child.spec.log}")
        return code not in child.spec.fatal_codes

    def _stop_all(self) -> None:
        self._restarter.stop(lambda: self._stop_signals > 1)
        for name in self._specs:
            child = self._children.pop(name, None)
            if child is not None:
                child.stop(hurry=lambda: self._stop_signals > 1)

    def _sleep(self, seconds: float) -> None:
        """Sleep, but wake at a signal or a child's end."""
        if select.select([self._wake_read], [], [], seconds)[0]:
            try:
                os.read(self._wake_read, 4096)
            except BlockingIOError:
                pass


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
