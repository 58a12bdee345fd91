"""A service under load that is struck again and again, and the data that it leaves behind."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from accidents import kill, readiness, victims_of
from load import Load, LoadSettings
from service_support import RunningService, is_running, until
from wire import Wire

from fieldfare.runtimes.process.restarts import RestartSettings
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.kafka_broker import KafkaBroker, why_no_broker

BUSY = {"maintenance_s": 0.3, "heartbeat_s": 1, "retention_bytes": 8 << 20}
"""Retention and compaction all the time; streams look every second whether they are to end."""
BUSY_LOAD = LoadSettings(large_share=0.1, bulk_subscriptions=2_500)
"""Enough large records for retention to have work, and enough changes for snapshots of the index."""
CALM_PACE_S = 0.05
"""For the small doses in ``make test``, which wait for processes to start: a full load doubles that."""
CALM_LOAD = LoadSettings(pace_s=CALM_PACE_S)
LOG_LINES_SHOWN = 15


class Scene:
    """One service after the other on the same data, under one load."""

    def __init__(
        self,
        data: Path,
        seed: int,
        load: LoadSettings | None = None,
        *,
        wire: Wire | None = None,
        **options: Any,
    ) -> None:
        print(f"seed {seed}")
        self.data, self.random = data, Random(seed)
        self._options = {"webhook_allow": "127.0.0.1", **options}
        self.service = RunningService(data, **self._options)
        try:
            self.service.wait_ready()
            self.load = Load(self.service, seed, load, wire)
        except BaseException:
            self.show()
            self.service.kill()
            raise
        self.over = False
        """The service has said that it cannot go on, as it should."""

    def restart(self, *, ready: bool = True, **options: Any) -> None:
        """Start the service again, after it was stopped or killed; from now on with other options."""
        self._options |= options
        self.service = RunningService(self.data, **self._options)
        self.load.move(self.service)
        if ready:
            self.service.wait_ready()

    def strike(self, kind: str) -> None:
        """Kill the processes of one kind, and wait until the service is ready again.

        ``starting``: the driver, and the next one while it is on its way up.
        """
        if kind == "starting":
            kill(victims_of(self.service, "driver"))
            until(lambda: self.service.jvm)
            kind = "driver"
        if kind == "supervisor":
            children = self.service.processes("")
            kill([self.service.process.pid])
            self.service.process.wait()
            self.restart()
            until(lambda: not any(map(is_running, children)), 180)
        else:
            kill(victims_of(self.service, kind))
            self.service.wait_ready()

    def linger(self, seconds: float) -> None:
        """Let things go on as they are for a while, as long as nobody complains."""
        until_s = time.monotonic() + seconds
        until(lambda: self.load.check() < 0 or time.monotonic() >= until_s, seconds + 60)

    def show(self) -> None:
        """Print what the service had to say."""
        print(self.service.console)
        for log in sorted(DataFolder(self.data).logs.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            print("\n".join([f"==> {log.name}", *(line[:300] for line in lines)]))

    def rest(self) -> None:
        """A pipeline that died five times in a row, as soon as it was ready, is given up: let it live."""
        self.linger(RestartSettings().quick_s)


@contextmanager
def logs_in(keeper: str, within: Path | None = None) -> Iterator[dict[str, str]]:
    """What a service is told whose logs are in ``sqlite``, or in ``kafka``, with a broker of its own.

    Skips the test where there can be no broker; `within` is where it writes. One partition: the ledger knows
    a record by its offset.
    """
    if keeper == "sqlite":
        yield {}
        return
    if (reason := why_no_broker()) is not None:
        pytest.skip(reason)
    with KafkaBroker(within=within) as broker:
        yield {"log": f"kafka://{broker.address}/events?partitions=1"}


@contextmanager
def scene(data: Path, seed: int, load: LoadSettings | None = None, **options: Any) -> Iterator[Scene]:
    """A scene that ends well: all that is owed was delivered, and the service stops in peace."""
    played = Scene(data, seed, load, **options)
    try:
        yield played
        if played.over:
            played.load.abandon()
        else:
            played.load.finish()
            assert readiness(played.service) == {}
            played.service.stop()
    except BaseException:
        played.show()
        played.load.abandon()
        if played.service.process.poll() is None:
            played.service.kill()
        raise


def copied(path: Path, to: Path) -> Callable[[], None]:
    """Copy a database or a folder that may be in use; gives what puts the copy back when it is not."""
    if path.is_dir():
        # What goes while it is copied need not be in the copy.
        subprocess.run(["cp", "-a", str(path), str(to)], stderr=subprocess.DEVNULL)
    else:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as copy:
            source.backup(copy)

    def put_back() -> None:
        if path.is_dir():
            shutil.rmtree(path)
            shutil.copytree(to, path)
        else:
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
            shutil.copy2(to, path)

    return put_back
