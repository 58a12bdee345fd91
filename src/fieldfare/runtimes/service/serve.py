"""The main program of ``fieldfare serve``: gateway, indexer and pipeline under one supervisor.

The supervisor holds the listening socket and passes it to the gateway. So a port in use is noticed before
anything starts, and while a gateway restarts its clients wait in the socket's queue instead of being refused.
At SIGUSR2 all processes are replaced, the supervisor's program included; see `restarting`.
"""

from __future__ import annotations

import errno
import http.client
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from fieldfare.runtimes.process.children import ChildSpec
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.runtimes.process.kernels import are_kernels_compiled
from fieldfare.runtimes.process.listening import (
    CannotListen,
    inherited_listener,
    listening_socket,
    next_listener,
)
from fieldfare.runtimes.process.locks import FileLock, LockTimeoutError
from fieldfare.runtimes.process.reexec import CHECK_VARIABLE, INHERITED_VARIABLE, Inheritance
from fieldfare.runtimes.process.restarts import RestartSettings
from fieldfare.runtimes.process.supervisor import Supervisor, has_terminal
from fieldfare.runtimes.process.watching import HangWatch
from fieldfare.runtimes.service.preparation import Preparation
from fieldfare.storage.addresses import settle
from fieldfare.storage.errors import StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.private import keep_private, tighten
from fieldfare.storage.sqlite.rebuild import mend_databases

EXIT_CANNOT_START = 3
FORMAT_CODE = 4
STALL_S = 60.0
READY_PROBE_S = 0.5
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
COMMANDS = {
    "gateway": (sys.executable, "-m", "fieldfare.gateway"),
    "indexer": (sys.executable, "-m", "fieldfare.runtimes.indexer"),
    "pipeline": (sys.executable, "-m", "fieldfare.runtimes.spark.driver"),
    "compiler": (sys.executable, "-m", "fieldfare.runtimes.spark.compile_kernels"),
}
"""Commands of the children, in the order of start and stop, and of the compiler of kernels."""
NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})
STOP_S = {"gateway": 15.0, "indexer": 10.0, "pipeline": 20.0}


class CannotStart(Exception):
    """The service cannot be started here; the message says why and what to do."""


def take_directory(folder: DataFolder) -> FileLock:
    """Lock a data directory for one service; the lock ends with its process.

    Raises
    ------
    CannotStart
        Another service uses the directory, or its path is unusable.
    """
    try:
        os.fsencode(folder.root).decode()
    except UnicodeDecodeError:
        raise CannotStart(
            f"the path of the data directory {folder.root!r} is not UTF-8, which Java needs; "
            "rename it, or name another directory with --data"
        ) from None
    if (problem := folder.misplaced()) is not None:
        raise CannotStart(f"{problem}; move it away, or name another directory with --data")
    path = folder.lock_of("serve")
    lock = FileLock(path, 0.0)
    try:
        folder.run.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except LockTimeoutError:
        holder = (path.read_text().split() or ["unknown"])[0]
        raise CannotStart(
            f"another fieldfare serve (process {holder}) works on {folder.root}; "
            "stop it, or name another directory with --data"
        ) from None
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
        raise CannotStart(f"cannot use the data directory {folder.root}: {problem}") from None
    return lock


def _end_predecessors(folder: DataFolder) -> None:
    """Wait for the children of a killed supervisor, which still use the databases; kill those that hang."""
    for name, stop_s in STOP_S.items():
        try:
            with FileLock(folder.lock_of(name), stop_s, end_holder=True):
                pass
        except (LockTimeoutError, OSError) as error:
            raise CannotStart(f"the {name} of an earlier service is still running: {error}") from None


def gateway_ready(host: str, port: int, *, is_tls: bool = False) -> Callable[[int], bool]:
    """Return a probe that tells whether the gateway answers."""
    if is_tls:
        return partial(_speaks_tls, host, port)
    target = _ANY.get(host, host)

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


def _speaks_tls(host: str, port: int, pid: int) -> bool:
    """Return whether the gateway answers with TLS, even if only to reject a client without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((_ANY.get(host, host), port), READY_PROBE_S) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except ssl.SSLError:
        return True
    except OSError:
        return False


def readiness_probe(heartbeat: Path) -> Callable[[int], bool]:
    """Return a probe that tells whether a process's heartbeat reports it as ready."""

    def probe(pid: int) -> bool:
        beat = read_beat(heartbeat)
        return beat.get("pid") == pid and beat.get("state") in ("ready", "running")

    return probe


def serve(
    data: Path,
    host: str = "127.0.0.1",
    port: int = 7737,
    *,
    log: str | None = None,
    index_store: str | None = None,
    is_tls: bool = False,
    gateway_environment: Mapping[str, str] = NO_ENVIRONMENT,
    commands: Mapping[str, Sequence[str]] = COMMANDS,
    restarts: RestartSettings | None = None,
    stall_s: float = STALL_S,
    say: Callable[[str], None] = lambda line: print(f"fieldfare: {line}", flush=True),
) -> int:
    """Run the whole service on a data directory until SIGTERM or SIGINT.

    Parameters
    ----------
    data
        The data directory; created if it does not exist.
    host, port
        Address to listen on; port 0 takes a free one.
    log, index_store
        Locations of the log, and of the index for machines of a cluster; see `addresses.settle`.
    is_tls, gateway_environment
        Whether the gateway uses TLS; its settings, as additional environment variables.
    commands
        Programs by the names in `COMMANDS`; the "compiler" is optional. ``--data`` and the like are added.
    restarts
        Pauses and thresholds for restarts of children.
    stall_s
        Seconds without a sign of life, or a match while events wait, after which a process is replaced.
    say
        Receives the console's lines.

    Returns
    -------
    int
        The exit code: 0 after a clean stop, 1 for an unknown format, 3 if directory or port are in use.
    """
    keep_private()
    _open_standard_files()
    say = partial(_write_to_console, say)
    folder = DataFolder(data.absolute())
    try:
        if (checked := Inheritance.taken(os.environ, CHECK_VARIABLE)) is not None:
            return _check_start(folder, (host, port), log, index_store, checked)
        folder, lock, listener, left = _open(folder, (host, port), log, index_store, say)
    except (CannotStart, StorageError) as error:
        say(str(error))
        return EXIT_CANNOT_START
    host, port = left.address[0], listener.getsockname()[1]
    if not left.is_restart:
        say(_starting(folder, "https" if is_tls else "http", host, port))
    probe = gateway_ready(host, port, is_tls=is_tls)
    gateway = _gateway_spec(folder, commands["gateway"], host, listener, probe, stall_s, gateway_environment)
    ahead = Preparation(commands.get("compiler"), are_kernels_compiled, say)
    others = [_spec(folder, name, commands[name], stall_s, ahead.is_done) for name in ("indexer", "pipeline")]
    state, logs = folder.heartbeat_of("serve"), folder.logs
    try:
        return Supervisor(
            [gateway, *others], say=say, restarts=restarts, inheritance=left, state=state, logs=logs,
            before_restart=ahead.stop,
        ).run()  # fmt: skip
    finally:
        ahead.stop()
        listener.close()
        lock.release()


def _open(
    folder: DataFolder,
    address: tuple[str, int],
    log: str | None,
    index_store: str | None,
    say: Callable[[str], None],
) -> tuple[DataFolder, FileLock, socket.socket, Inheritance]:
    """Return the directory with its addresses, its lock, the listening socket, and the next inheritance.

    Lock and socket are those of the program before this one, if there is one.
    """
    inherited = Inheritance.taken(os.environ, INHERITED_VARIABLE)
    if inherited is not None:
        return _continue(folder, address, inherited, say)
    lock = _take(folder, say)
    try:
        folder = settle(folder.root, log, index_store)
        listener = listening_socket(*address)
    except (CannotListen, StorageError) as error:
        lock.release()
        hint = "; name another port with --port" if isinstance(error, CannotListen) else ""
        raise CannotStart(f"{error}{hint}") from None
    # A process started with nohup shall outlive the terminal.
    ends_with_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    descriptors = lock.descriptor, listener.fileno()
    left = Inheritance(str(folder.root), address, *descriptors, ends_with_terminal=ends_with_terminal)
    return folder, lock, listener, left


def _continue(
    folder: DataFolder, address: tuple[str, int], inherited: Inheritance, say: Callable[[str], None]
) -> tuple[DataFolder, FileLock, socket.socket, Inheritance]:
    """Return what `_open` does, for a program that replaces another one.

    `_check_start` has recorded the addresses of the logs. They are not looked for again: should they not
    answer now, running processes would end.
    """
    lock = FileLock.inherited(folder.lock_of("serve"), inherited.lock)
    listener = inherited_listener(inherited.listener)
    if inherited.address != address:
        try:
            former, listener = listener, next_listener(*address)
            former.close()
        except CannotListen as error:  # Another program was faster.
            say(f"{error}; the address does not change")
            address = inherited.address
    left = replace(inherited, address=address, lock=lock.descriptor, listener=listener.fileno())
    return DataFolder.at(folder.root), lock, listener, left


def _take(folder: DataFolder, say: Callable[[str], None]) -> FileLock:
    """Lock the directory, wait for an earlier service's processes, and repair files."""
    lock = take_directory(folder)
    _tighten(folder, say)
    try:
        _end_predecessors(folder)
        mend_databases(folder.databases, say)
    except (CannotStart, StorageError):
        lock.release()
        raise
    return lock


def _check_start(
    folder: DataFolder,
    address: tuple[str, int],
    log: str | None,
    index_store: str | None,
    inherited: Inheritance,
) -> int:
    """Check whether this program could continue for a running one, with whose options it was started."""
    if str(folder.root) != inherited.data:
        raise CannotStart(f"its data directory is {inherited.data}, and cannot be changed to {folder.root}")
    settle(folder.root, log, index_store)
    try:
        if inherited.address != address:
            next_listener(*address).close()
    except CannotListen as error:
        raise CannotStart(str(error)) from None
    return 0


def _starting(folder: DataFolder, scheme: str, host: str, port: int) -> str:
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    place = f"{folder.root} and {folder.log}" if folder.log else f"{folder.root}"
    return f"starting on {address}, data in {place}, logs in {folder.logs}"


def _write_to_console(say: Callable[[str], None], line: str) -> None:
    """Write to the console; a closed console does not stop the service."""
    try:
        say(line)
    except OSError as error:
        if error.errno in _CLOSED:
            _leave_closed_console()


_CLOSED = (errno.EPIPE, errno.EIO)
"""Errors of a pipe without a reader, and of a terminal that was closed."""


def _leave_closed_console() -> None:
    """Direct a closed console to the null device; otherwise Python exits with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _open_standard_files() -> None:
    """If this process was started without standard files, reserve their descriptors."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _tighten(folder: DataFolder, say: Callable[[str], None]) -> None:
    """Make files of earlier versions private to this user, too."""
    try:
        tighten(folder)
    except OSError as error:
        say(f"other users may be able to read files in {folder.root}: {error}")


def _gateway_spec(
    folder: DataFolder,
    command: Sequence[str],
    host: str,
    listener: socket.socket,
    probe: Callable[[int], bool],
    stall_s: float,
    environment: Mapping[str, str],
) -> ChildSpec:
    port, descriptor = listener.getsockname()[1], listener.fileno()
    place = ("--data", str(folder.root), "--host", host, "--port", str(port), "--fd", str(descriptor))
    return ChildSpec(
        "gateway",
        (*command, *place),
        folder.log_of("gateway"),
        probe,
        STOP_S["gateway"],
        environment=environment,
        fatal_codes=frozenset({FORMAT_CODE}),
        find_hang=HangWatch(folder.lock_of("gateway"), stall_s),
        descriptors=(descriptor,),
    )


def _spec(
    folder: DataFolder, name: str, command: Sequence[str], stall_s: float, may_start: Callable[[], bool]
) -> ChildSpec:
    """Return the spec of a process that writes heartbeats."""
    heartbeat = folder.heartbeat_of(name)
    return ChildSpec(
        name,
        (*command, "--data", str(folder.root)),
        folder.log_of(name),
        readiness_probe(heartbeat),
        STOP_S[name],
        fatal_codes=frozenset({FORMAT_CODE}),
        find_hang=HangWatch(heartbeat, stall_s),
        may_start=may_start,
    )
