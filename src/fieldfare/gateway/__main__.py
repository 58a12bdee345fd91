"""``python -m fieldfare.gateway --data DIR [--host H] [--port P]``: one gateway process."""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path

from pydantic import ValidationError

from fieldfare.gateway.admission.connections import server_config
from fieldfare.gateway.app import create_app
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.server import SHUTDOWN_S, Server
from fieldfare.gateway.settings import GatewaySettings, UnusableFile, wrong_setting
from fieldfare.runtimes.process.listening import CannotListen, listening_socket
from fieldfare.runtimes.process.locks import FileLock, LockTimeoutError
from fieldfare.runtimes.process.log_lines import configure_logging, process_line
from fieldfare.runtimes.process.parents import end_with_parent
from fieldfare.runtimes.process.program import end_process
from fieldfare.runtimes.process.successors import wait_for_turn
from fieldfare.runtimes.process.without_pandas import leave_out_pandas
from fieldfare.storage import load_stores
from fieldfare.storage.errors import FormatError, StorageError
from fieldfare.storage.private import keep_private

EXIT_LATER = 1
EXIT_PORT_IN_USE = 3
EXIT_STORAGE = 4
"""Exit code for errors that a restart cannot fix: the settings or the directory must change."""


def main(arguments: list[str] | None = None) -> int:
    """Run a gateway until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fieldfare.gateway", description=__doc__)
    parser.add_argument("--data", type=Path, help="the data directory (FIELDFARE_DATA)")
    parser.add_argument("--host", help="the address to listen on (FIELDFARE_HOST)")
    parser.add_argument("--port", type=int, help="the port; 0 chooses a free one (FIELDFARE_PORT)")
    parser.add_argument("--fd", type=int, help="an inherited listening socket, instead of host and port")
    given = {key: value for key, value in vars(parser.parse_args(arguments)).items() if value is not None}
    inherited = given.pop("fd", None)
    try:
        settings = GatewaySettings(**given)
    except ValidationError as error:
        _say(wrong_setting(error))
        return EXIT_STORAGE
    configure_logging("gateway")
    end_with_parent()
    keep_private()
    try:
        address = settings.host, settings.port
        listener = listening_socket(*address) if inherited is None else socket.socket(fileno=inherited)
    except CannotListen as error:
        _say(error)
        return EXIT_PORT_IN_USE
    load_stores(settings.folder.log_url)
    if not wait_for_turn():
        return EXIT_LATER
    try:
        # Held until this process ends: a gateway that is still stopping after its supervisor was killed
        # would overwrite the cursors of its successor.
        settings.folder.run.mkdir(parents=True, exist_ok=True)
        lock = settings.folder.lock_of("gateway")
        FileLock(lock, settings.predecessor_wait_s, end_holder=inherited is not None).acquire()
        gateway = Gateway(settings)
    except LockTimeoutError:
        _say(f"another gateway is using {settings.data}")
        return EXIT_STORAGE if inherited is None else EXIT_LATER
    except (FormatError, UnusableFile) as error:
        _say(error)
        return EXIT_STORAGE
    except (StorageError, OSError) as error:  # a full disk may pass
        _say(error)
        return EXIT_LATER
    host, port = listener.getsockname()[:2]
    tls = gateway.certificates
    # While filters are compiled on a thread, requests should not wait long for the interpreter.
    sys.setswitchinterval(0.001)
    config = server_config(create_app(gateway), settings, tls, timeout_graceful_shutdown=SHUTDOWN_S)
    server = Server(config, gateway, f"{'http' if tls is None else 'https'}://{host}:{port}")
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _say(line: object) -> None:
    print(process_line("gateway", str(line)), file=sys.stderr)


if __name__ == "__main__":
    leave_out_pandas()
    end_process(main())
