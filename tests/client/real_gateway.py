"""The real gateway as a process that can be killed; the filters' evaluator takes the pipeline's place."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.folder import DataFolder
from fieldfare.testing import naive_pipeline

READY = "ready on "
LOOK_S = 0.2
"""Seconds after which the pipeline looks at the log although its bell has not rung."""


class RealGateway:
    """One gateway process on a data directory; after a kill it starts again at the same address."""

    def __init__(self, data: Path, **settings: str) -> None:
        self._data = data
        self._settings = {f"FIELDFARE_{name.upper()}": value for name, value in settings.items()}
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        log = (self._data / "gateway.log").open("a")
        command = [
            sys.executable,
            "-m",
            "fieldfare.gateway",
            "--data",
            str(self._data),
            "--port",
            str(self._port),
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FIELDFARE_")}
        environment |= self._settings
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        log.close()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert READY in line, (self._data / "gateway.log").read_text()
        self.url = line.split(READY)[1].split()[0]
        self._port = int(self.url.rsplit(":", 1)[1])

    def loaded(self) -> str:
        """Return the process's memory map, which includes loaded libraries."""
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/maps").read_text()

    def kill(self) -> None:
        """End it as a power failure would."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate(timeout=180)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.communicate(timeout=180)


class NaivePipeline:
    """Matches what the log holds, a block at a time, from a thread of its own."""

    def __init__(self, data: Path) -> None:
        self._log = open_event_log(DataFolder(data).log_url)
        self._registry = open_registry(DataFolder(data).registry_url)
        matches = FileMatchLog(DataFolder(data).matches)
        self._pipeline = naive_pipeline.NaivePipeline(self._log, self._registry, matches, DataFolder(data))
        self._stopping = threading.Event()
        self._waiter = self._log.listen({0: 0})
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> NaivePipeline:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._waiter.set()
        self._thread.join(60)
        self._waiter.close()
        self._log.close()
        self._registry.close()

    def end(self) -> int:
        """Where the log ends."""
        return self._log.end()

    def settled(self, number: int) -> int:
        """The first offset of which not all that a subscription gets is saved as acked."""
        cursor = self._registry.load_cursors([number]).get(number)
        return cursor.positions[0].offset if cursor and cursor.positions else 0

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._waiter.clear()
            if self._pipeline.step(20) == self._log.end():
                self._waiter.wait(LOOK_S)


@contextmanager
def running_gateway(data: Path, **settings: str) -> Iterator[RealGateway]:
    """A gateway and the naive pipeline on a data directory."""
    data.mkdir(parents=True, exist_ok=True)
    gateway = RealGateway(data, **settings)
    gateway.start()
    try:
        with NaivePipeline(data):
            yield gateway
    finally:
        gateway.stop()
