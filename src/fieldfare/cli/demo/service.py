"""The service that the demo starts: ``fieldfare serve`` in another process."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fieldfare.client import Client
from fieldfare.runtimes.indexer.index_writer import SnapshotSettings
from fieldfare.runtimes.process.parents import signal_at_parents_death
from fieldfare.storage import open_index_store, open_registry
from fieldfare.storage.folder import DataFolder

START_WAIT_S = 600.0
"""Maximum time for the service to start, in seconds: the first start compiles kernels for minutes."""
CLUSTER_START_WAIT_S = 900.0
"""Maximum time to start on a cluster, in seconds: the workers' code may have to be packed and unpacked."""
INDEX_WAIT_S = 180.0
SNAPSHOT_WAIT_S = 90.0
CONNECT_WAIT_S = 30.0
STOP_WAIT_S = 45.0
LOOK_EVERY_S = 0.1
SERVE = "from fieldfare.cli import main; main()"


class ServiceFailed(RuntimeError):
    """The service did not start, ended unexpectedly, or did not reach a state in time."""


@dataclass(frozen=True, slots=True)
class ServicePlaces:
    """A service's data directory, port and addresses.

    Attributes
    ----------
    data
        The data directory; None for a temporary one.
    port
        The port; 0 chooses a free one.
    log, master, index_store
        The options of ``fieldfare serve`` with these names.
    """

    data: Path | None = None
    port: int = 0
    log: str | None = None
    master: str | None = None
    index_store: str | None = None

    @property
    def options(self) -> list[str]:
        """Options for ``fieldfare serve``."""
        named = (("--log", self.log), ("--master", self.master), ("--index-store", self.index_store))
        return [
            "--port",
            str(self.port),
            *(text for name, value in named if value is not None for text in (name, value)),
        ]


class Service:
    """A context manager that runs a service.

    Parameters
    ----------
    data
        The data directory.
    places
        The port and the addresses.

    Attributes
    ----------
    url
        The service's address; set by `wait_until_ready`.
    """

    def __init__(self, data: Path, places: ServicePlaces = ServicePlaces()) -> None:
        self._data = data
        self._places = places
        self.url = ""
        self._lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    @property
    def folder(self) -> DataFolder:
        """The data directory, with the addresses of logs that are elsewhere."""
        return DataFolder.at(self._data)

    def __enter__(self) -> Service:
        self._lines = []
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                SERVE,
                "serve",
                "--data",
                str(self._data),
                *self._places.options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C reaches only the demo, which then stops the service.
            start_new_session=True,
            preexec_fn=signal_at_parents_death(),
        )
        threading.Thread(target=self._read_lines, name="service-output", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the service and wait until it has ended. May be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_until_ready(self) -> None:
        """Wait until the service accepts and matches events."""

        def is_ready() -> bool:
            return any(line.endswith("fieldfare: ready") for line in self._lines)

        wait_s = START_WAIT_S if self._places.master is None else CLUSTER_START_WAIT_S
        self._wait(is_ready, wait_s, "the service to be ready")
        found = re.search(r"https?://[^\s,]+", "\n".join(self._lines))
        if found is None:
            raise ServiceFailed(f"the service has not printed its address:\n{self._last_lines()}")
        self.url = found[0]

    def wait_until_indexed(self) -> None:
        """Wait until the index covers all subscriptions, and a snapshot covers nearly all of them.

        Events that are published earlier are matched correctly, too; but matching with a snapshot is faster
        than with the changes since, and building one takes a core.
        """
        registry = open_registry(self.folder.registry_url)
        try:
            revision = registry.revision()
        finally:
            registry.close()
        store = open_index_store(self.folder.index_url)

        def is_covered() -> bool:
            manifest = store.newest()
            return manifest is not None and manifest.revision >= revision

        def has_snapshot() -> bool:
            manifest = store.newest()
            return manifest is not None and not SnapshotSettings().is_due(
                revision - manifest.snapshot_revision, revision
            )

        self._wait(is_covered, INDEX_WAIT_S, "the index to hold all subscriptions")
        self._reaches(has_snapshot, SNAPSHOT_WAIT_S)

    def wait_until_connected(self, streams: int) -> None:
        """Wait until ``streams`` subscribers are connected."""
        with Client(self.url) as client:

            def are_connected() -> bool:
                return int(client.stats()["connected"]) >= streams

            self._wait(are_connected, CONNECT_WAIT_S, f"{streams} subscribers to connect")

    def _wait(self, condition: Callable[[], bool], wait_s: float, what: str) -> None:
        if not self._reaches(condition, wait_s):
            raise ServiceFailed(
                f"waited {wait_s:.0f} s for {what}; the logs are in {self.folder.logs}:\n{self._last_lines()}"
            )

    def _reaches(self, condition: Callable[[], bool], wait_s: float) -> bool:
        """Wait until a condition holds; return whether it does in time."""
        deadline_s = time.monotonic() + wait_s
        while not condition():
            if self._process is None or self._process.poll() is not None:
                raise ServiceFailed(f"the service ended by itself:\n{self._last_lines()}")
            if time.monotonic() > deadline_s:
                return False
            time.sleep(LOOK_EVERY_S)
        return True

    def _read_lines(self) -> None:
        process = self._process
        if process is not None and process.stdout is not None:
            for line in process.stdout:
                self._lines.append(line.rstrip())

    def _last_lines(self) -> str:
        return "\n".join(f"  | {line}" for line in self._lines[-15:])
