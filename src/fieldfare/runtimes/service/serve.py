"""What ``fieldfare serve`` runs: gateway, indexer and pipeline under one supervisor.

The supervisor holds the listening socket and lends it to the gateway. So a port in use is noticed before
anything starts, and while a gateway is started again its clients wait in the socket's queue instead of
being refused.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from fieldfare.runtimes.process.children import ChildSpec
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.runtimes.process.listening import CannotListen, listening_socket
from fieldfare.runtimes.process.locks import FileLock, LockTimeoutError
from fieldfare.runtimes.process.restarts import RestartSettings
from fieldfare.runtimes.process.supervisor import Supervisor
from fieldfare.runtimes.process.watching import HangWatch
from fieldfare.storage.addresses import settle
from fieldfare.storage.errors import StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.private import keep_private, tighten

EXIT_CANNOT_START = 3
FORMAT_CODE = 4
STALL_S = 60.0
READY_PROBE_S = 0.5
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
COMMANDS = {
    "gateway": (sys.executable, "-m", "fieldfare.gateway"),
    "indexer": (sys.executable, "-m", "fieldfare.runtimes.indexer"),
    "pipeline": (sys.executable, "-m", "fieldfare.runtimes.spark.driver"),
}
"""The children, in the order in which they are started and stopped."""
NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})
STOP_S = {"gateway": 15.0, "indexer": 10.0, "pipeline": 20.0}


class CannotStart(Exception):
    """The service cannot be started here; the message says why and what to do."""


def take_directory(folder: DataFolder) -> FileLock:
    """Only one service works on a data directory at a time; the lock goes with its process."""
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
        raise CannotStart(str(error)) from None
    return lock


def gateway_ready(host: str, port: int, *, is_tls: bool = False) -> Callable[[int], bool]:
    """A probe: whether the gateway answers."""
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
    """Whether somebody answers with TLS, if only to say that one's certificate is missing."""
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


def says_ready(heartbeat: Path) -> Callable[[int], bool]:
    """A probe: whether a process says that it is ready."""

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
        Where everything is kept; created if it is not there.
    host, port
        Where to listen; port 0 takes a free one.
    log, index_store
        What is elsewhere: the log, and where machines of a cluster read the index; see `addresses.settle`.
    is_tls, gateway_environment
        Whether the gateway is told to speak TLS; and its settings, as variables beside this process's.
    commands
        What to run, without ``--data``, ``--host`` and ``--port``; the names are those of `COMMANDS`.
    restarts
        How patient to be with a child that dies.
    stall_s
        After so many seconds without a sign of life, or a match though events wait, a process is replaced.
    say
        Gets the console's lines.

    Returns
    -------
    int
        The exit code: 0 after a clean stop, 1 for another format, 3 when directory or port are in use.
    """
    keep_private()
    folder = DataFolder(data.absolute())
    try:
        lock = take_directory(folder)
    except CannotStart as error:
        say(str(error))
        return EXIT_CANNOT_START
    _tighten(folder, say)
    try:
        folder, listener = settle(folder.root, log, index_store), listening_socket(host, port)
    except (CannotListen, StorageError) as error:
        is_port = isinstance(error, CannotListen)
        say(f"{error}; name another port with --port" if is_port else str(error))
        lock.release()
        return EXIT_CANNOT_START
    port = listener.getsockname()[1]
    address = f"{'https' if is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    place = f"{folder.root} and {folder.log}" if folder.log else f"{folder.root}"
    say(f"starting on {address}, data in {place}, logs in {folder.logs}")
    probe = gateway_ready(host, port, is_tls=is_tls)
    gateway = _gateway_spec(folder, commands["gateway"], host, listener, probe, stall_s, gateway_environment)
    others = [_spec(folder, name, commands[name], stall_s) for name in ("indexer", "pipeline")]
    try:
        return Supervisor([gateway, *others], say=say, restarts=restarts, logs=folder.logs).run()
    finally:
        listener.close()
        lock.release()


def _tighten(folder: DataFolder, say: Callable[[str], None]) -> None:
    """What an earlier version left is for this user alone, too."""
    try:
        tighten(folder)
    except OSError as error:
        say(f"others than this user may read what is in {folder.root}: {error}")


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


def _spec(folder: DataFolder, name: str, command: Sequence[str], stall_s: float) -> ChildSpec:
    """A process that says in a heartbeat how it is."""
    heartbeat = folder.heartbeat_of(name)
    return ChildSpec(
        name,
        (*command, "--data", str(folder.root)),
        folder.log_of(name),
        says_ready(heartbeat),
        STOP_S[name],
        fatal_codes=frozenset({FORMAT_CODE}),
        find_hang=HangWatch(heartbeat, stall_s),
    )
