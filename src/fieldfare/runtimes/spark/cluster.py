"""What is different when tasks run on other machines than the driver: settings, code, and how many there are.

The driver stays a process of the service's own machine (Spark's *client mode*), and with it everything that
Spark itself writes. Executors bring nothing but Python and Spark: see `worker_archive`.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from fieldfare.runtimes.spark.master import WORKER_PYTHON, is_cluster
from fieldfare.runtimes.spark.worker_archive import write_worker_archive
from fieldfare.storage.folder import DataFolder

ARCHIVES = Path(sys.prefix) / "share" / "fieldfare"

UNPACKED = "fieldfare"
"""What the folder is called in which an executor has the archive, beside its other files."""

SETTLED_S = 2.0
"""So long no executor more must have come before the first batch is planned for those that are there."""
LOST_S = 10.0
"""So long a cluster may give no executor at all before the application is begun anew."""
LOST_ELSEWHERE_S = 120.0
"""The same on YARN and Kubernetes, which know the application: they start other executors, in their time."""
MORE_S = 5.0
"""So long there must be more slots than batches are planned for before the query is begun anew."""
_LOOK_S = 0.2


class NoExecutorsError(RuntimeError):
    """A cluster gives this application nothing to run on."""


def cluster_config(master: str, properties: dict[str, str], scratch: Path) -> dict[str, str]:
    """The settings of a session on a cluster that differ from those on one machine.

    `properties` are the user's, which go over these.
    """
    config = {
        "spark.master": master,
        # Events never enter the executors' Java processes either: their Python workers need the memory.
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k",
        "spark.executor.syncLogLevel.enabled": "true",
        # An application lasts for months; so would all that its executors ever said.
        "spark.executor.logs.rolling.strategy": "size",
        "spark.executor.logs.rolling.maxSize": str(16 << 20),
        "spark.executor.logs.rolling.maxRetainedFiles": "2",
        # A machine that falls silent without a word is given up after this, not after two minutes.
        "spark.executor.heartbeatInterval": "2s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "15000",
        "spark.network.timeoutInterval": "1s",
        # A task that an executor is too slow for (it has just started, or hangs) runs on another, too. It
        # writes the same blocks, so nobody minds which of the two is first.
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "1500ms",
        "spark.speculation.task.duration.threshold": "1500ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "3",
        "spark.speculation.efficiency.enabled": "false",
    }
    host = urlsplit(master.partition(",")[0]).hostname
    if master.startswith("spark://") and host is not None:
        config["spark.driver.host"] = config["spark.driver.bindAddress"] = _address_towards(host)
    if master == "yarn":
        # A container's folder for temporary files has a longer path than a socket's name may have.
        config["spark.python.unix.domain.socket.enabled"] = "false"
    if WORKER_PYTHON not in properties:
        archive = write_worker_archive(_writable(ARCHIVES, scratch))
        # YARN brings it to each node once; what has the other name each executor asks the driver for, too.
        shipped = "spark.yarn.dist.archives" if master == "yarn" else "spark.archives"
        config |= {
            shipped: f"{archive.resolve().as_uri()}#{UNPACKED}",
            "spark.executorEnv.PYTHONPATH": f"./{UNPACKED}",
        }
    return config


def worker_python(properties: dict[str, str], scratch: Path) -> str:
    """What Spark starts Python as: by name on the workers; here the same name is this process's own."""
    if WORKER_PYTHON in properties:
        return properties[WORKER_PYTHON]
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = scratch.resolve() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    # The source's own process runs here, and Spark knows one name for all.
    (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (folder / name).chmod(0o700)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return name


def tasks_folder(session: SparkSession, folder: DataFolder) -> DataFolder:
    """A service's directory as the tasks of a session see it."""
    return folder.for_tasks() if is_cluster(session.sparkContext.master) else folder


class ExecutorSlots:
    """How many tasks a session runs at once: those of this machine, or of the executors that are there now.

    Parameters
    ----------
    session : SparkSession
    clock_s : callable
        Seconds of a clock that nobody sets.
    """

    def __init__(self, session: SparkSession, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._context = session.sparkContext
        self._is_cluster = is_cluster(self._context.master)
        self._lost_s = LOST_S if self._context.master.startswith("spark://") else LOST_ELSEWHERE_S
        self._clock_s = clock_s
        self._there_s = clock_s()
        self._more_s: float | None = None
        self.planned = 0

    def executors(self) -> int:
        """How many executors there are besides the driver."""
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1

    def wait(self, stop: threading.Event, alive: Callable[[], object]) -> None:
        """Wait until there are executors, and no more come; `alive` is called again and again."""
        known, since_s = 0, self._clock_s()
        while self._is_cluster and not stop.is_set():
            alive()
            now = self.executors()
            if now != known:
                known, since_s = now, self._clock_s()
            elif now and self._clock_s() - since_s >= SETTLED_S:
                break
            stop.wait(_LOOK_S)
        self._there_s = self._clock_s()

    def plan(self) -> int:
        """How many batches are to be planned for, from now on."""
        self._more_s = None
        self.planned = int(self._context.defaultParallelism)
        return self.planned

    def look(self) -> bool:
        """Whether there have been more for a while than batches are planned for.

        Raises
        ------
        NoExecutorsError
            There were none for a while: a master that lost its memory knows this application no more.
        """
        if not self._is_cluster:
            return False
        now_s = self._clock_s()
        if self.executors():
            self._there_s = now_s
        elif now_s - self._there_s > self._lost_s:
            raise NoExecutorsError(f"the cluster gave this application no executor for {self._lost_s:.0f} s")
        if int(self._context.defaultParallelism) <= self.planned:
            self._more_s = None
        elif self._more_s is None:
            self._more_s = now_s
        return self._more_s is not None and now_s - self._more_s >= MORE_S


def _address_towards(host: str) -> str:
    """The address of this machine that another reaches, as far as the way to it says."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((host, 9))  # Nothing is sent.
        except OSError:
            return socket.getfqdn()
        return str(way.getsockname()[0])


def _writable(folder: Path, otherwise: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return otherwise
    return folder if os.access(folder, os.W_OK) else otherwise
