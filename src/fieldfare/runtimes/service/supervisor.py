"""What ``fieldfare serve`` runs: gateway and pipeline as two processes, started, watched and stopped.

The supervisor holds the listening socket and lends it to the gateway. So a port in use is noticed before
anything starts, and while a gateway is started again its clients wait in the socket's queue instead of
being refused.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from fieldfare.runtimes.service.children import Child, ChildSpec, describe_exit
from fieldfare.runtimes.service.logs import set_aside_large
from fieldfare.runtimes.service.progress import LifeWatch, ProgressWatch
from fieldfare.runtimes.service.restarts import Restarts, RestartSettings

EXIT_GAVE_UP = 1
EXIT_CANNOT_START = 3
GATEWAY_STORAGE_CODE = 4
PIPELINE_FORMAT_CODE = 4
LOOK_EVERY_S = 0.1
LOGS_EVERY_S = 10.0
STALL_S = 60.0
READY_PROBE_S = 0.5
GATEWAY_STOP_S = 15.0
PIPELINE_STOP_S = 20.0


class CannotStart(Exception):
    """The service cannot be started here; the message says why and what to do."""


class DirectoryLock:
    """Only one service works on a data directory at a time; the lock goes with its process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a+")  # noqa: SIM115  (held until `release`)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise CannotStart(
                f"another fieldfare serve (process {holder}) works on {path.parent.parent}; "
                "stop it, or name another directory with --data"
            ) from None
        # Who it is, for people; on a full disk the lock holds without.
        with suppress(OSError):
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()

    def release(self) -> None:
        with suppress(OSError):
            self._file.close()


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


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; CannotStart when the address cannot be had."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise CannotStart(
            f"cannot listen on {host}:{port}: {error.strerror or error}; name another port with --port"
        ) from None
    return listener


def gateway_ready(host: str, port: int) -> Callable[[int], bool]:
    """A probe: whether the gateway answers."""
    target = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)

    def probe(pid: int) -> bool:
        connection = http.client.HTTPConnection(target, port, timeout=READY_PROBE_S)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return probe


def pipeline_ready(heartbeat: Path) -> Callable[[int], bool]:
    """A probe: whether the pipeline process says that it is ready."""

    def probe(pid: int) -> bool:
        try:
            written = json.loads(heartbeat.read_bytes())
            return bool(written["pid"] == pid and written["state"] in ("ready", "running"))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    return probe


def serve(
    data: Path,
    host: str = "127.0.0.1",
    port: int = 7737,
    *,
    gateway_command: Sequence[str] = (sys.executable, "-m", "fieldfare.gateway"),
    pipeline_command: Sequence[str] = (sys.executable, "-m", "fieldfare.runtimes.spark.driver"),
    restarts: RestartSettings | None = None,
    stall_s: float = STALL_S,
    say: Callable[[str], None] = lambda line: print(f"fieldfare: {line}", flush=True),
) -> int:
    """Run the whole service on a data directory until SIGTERM or SIGINT.

    Parameters
    ----------
    data
        Where everything is kept; created if it is not there.
    host, port
        Where to listen; port 0 takes a free one.
    gateway_command, pipeline_command
        What to run, without ``--data``, ``--host`` and ``--port``.
    restarts
        How patient to be with a child that dies.
    stall_s
        Seconds without progress, though events wait, after which the pipeline is ended and started again;
        and either process without a sign of life.
    say
        Gets the console's lines.

    Returns
    -------
    int
        The exit code: 0 after a clean stop, 1 when the directory is of another format, 3 when the directory
        or the port is in use.
    """
    data = data.absolute()
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock(data / "run" / "serve.lock")
    except (CannotStart, OSError) as error:
        say(str(error))
        return EXIT_CANNOT_START
    try:
        listener = listening_socket(host, port)
    except CannotStart as error:
        say(str(error))
        lock.release()
        return EXIT_CANNOT_START
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    say(f"starting on http://{shown}:{port}, data in {data}, logs in {data / 'logs'}")
    specs = [
        _gateway_spec(data, gateway_command, host, listener, stall_s),
        _pipeline_spec(data, pipeline_command, stall_s),
    ]
    try:
        return Supervisor(specs, say=say, restarts=restarts, logs=data / "logs").run()
    finally:
        listener.close()
        lock.release()


def _gateway_spec(
    data: Path, command: Sequence[str], host: str, listener: socket.socket, stall_s: float
) -> ChildSpec:
    port = listener.getsockname()[1]
    place = ("--data", str(data), "--host", host, "--port", str(port), "--fd", str(listener.fileno()))
    return ChildSpec(
        "gateway",
        (*command, *place),
        data / "logs" / "gateway.log",
        gateway_ready(host, port),
        GATEWAY_STOP_S,
        fatal_codes=frozenset({GATEWAY_STORAGE_CODE}),
        find_hang=LifeWatch(data / "run" / "gateway.lock", stall_s),
        descriptors=(listener.fileno(),),
    )


def _pipeline_spec(data: Path, command: Sequence[str], stall_s: float) -> ChildSpec:
    heartbeat = data / "run" / "pipeline.json"
    return ChildSpec(
        "pipeline",
        (*command, "--data", str(data)),
        data / "logs" / "pipeline.log",
        pipeline_ready(heartbeat),
        PIPELINE_STOP_S,
        fatal_codes=frozenset({PIPELINE_FORMAT_CODE}),
        find_hang=ProgressWatch(heartbeat, stall_s),
    )
