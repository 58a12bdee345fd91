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
from pathlib import Path
from types import FrameType

from fieldfare.runtimes.service.children import Child, ChildSpec, describe_exit
from fieldfare.runtimes.service.restarts import Restarts, RestartSettings

EXIT_GAVE_UP = 1
EXIT_CANNOT_START = 3
GATEWAY_STORAGE_CODE = 4
LOOK_EVERY_S = 0.1
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
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


class Supervisor:
    """Starts children in order, starts them again when they die, stops them in order.

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
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        say: Callable[[str], None],
        restarts: RestartSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._say = say
        self._clock = clock
        self._children: dict[str, Child] = {}
        self._restarts = {name: Restarts(restarts or RestartSettings()) for name in self._specs}
        self._start_at_s: dict[str, float] = dict.fromkeys(self._specs, 0.0)
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
        """Run until stopped (0) or given up (`EXIT_GAVE_UP`)."""
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
                        self._children[name] = Child(spec)
                    continue
                if child.look():
                    self._restarts[name].ready(now_s)
                    self._say(f"{name} ready (process {child.pid})")
                    self._announce()
                code = child.exit_code()
                if code is not None and not self._survives(name, child, code, now_s):
                    return EXIT_GAVE_UP
            self._sleep(LOOK_EVERY_S)
        self._say("stopping")
        return 0

    def _announce(self) -> None:
        ready = all(name in self._children and self._children[name].is_ready for name in self._specs)
        if ready and not self._announced:
            self._announced = True
            self._say("ready")

    def _survives(self, name: str, child: Child, code: int, now_s: float) -> bool:
        """A child has died: plan its restart, or say why there is none."""
        child.sweep()
        del self._children[name]
        pause_s = None if code in child.spec.fatal_codes else self._restarts[name].died(now_s)
        said = f"{name} {describe_exit(code)}"
        if pause_s is not None:
            self._start_at_s[name] = now_s + pause_s
            self._say(f"{said}; starting it again")
            return True
        deaths = self._restarts[name].quick_deaths
        self._say(f"{said}{f', {deaths} times in a row' if deaths > 1 else ''}; giving up. Its last lines:")
        for line in child.last_lines():
            self._say(f"  | {line}")
        self._say(f"all of it is in {child.spec.log}")
        return False

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
    say
        Gets the console's lines.

    Returns
    -------
    int
        The exit code: 0 after a clean stop, 1 when a child died again and again, 3 when the directory or
        the port is in use.
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
    place = ("--data", str(data))
    specs = [
        ChildSpec(
            "gateway",
            (*gateway_command, *place, "--host", host, "--port", str(port), "--fd", str(listener.fileno())),
            data / "logs" / "gateway.log",
            gateway_ready(host, port),
            GATEWAY_STOP_S,
            fatal_codes=frozenset({GATEWAY_STORAGE_CODE}),
            descriptors=(listener.fileno(),),
        ),
        ChildSpec(
            "pipeline",
            (*pipeline_command, *place),
            data / "logs" / "pipeline.log",
            pipeline_ready(data / "run" / "pipeline.json"),
            PIPELINE_STOP_S,
        ),
    ]
    try:
        return Supervisor(specs, say=say, restarts=restarts).run()
    except OSError as error:
        say(f"a process could not be started: {error}")
        return EXIT_CANNOT_START
    finally:
        listener.close()
        lock.release()
