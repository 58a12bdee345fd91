"""Settings, code and number of tasks when tasks run on other machines than the driver.

The driver stays a process of the service's own machine (Spark's *client mode*), as does everything that Spark
itself writes. Executors need only Python and Spark: see `worker_archive`.
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

from pyspark import SparkContext

from fieldfare.runtimes.spark.master import WORKER_PYTHON, is_cluster
from fieldfare.runtimes.spark.worker_archive import write_worker_archive
from fieldfare.storage.folder import DataFolder

ARCHIVES = Path(sys.prefix) / "share" / "fieldfare"

UNPACKED = "fieldfare"
"""Name of the folder into which an executor unpacks the archive, in its working directory."""

SETTLED_S = 2.0
"""Seconds without a new executor before the first batch is planned for those that are there."""
LOST_S = 10.0
"""Seconds without any executor on a standalone cluster before the application is restarted."""
LOST_ELSEWHERE_S = 120.0
"""Like `LOST_S`, on YARN and Kubernetes, which replace lost executors themselves."""
MORE_S = 5.0
"""Seconds during which there must be more slots than planned for before the loop is restarted."""
_LOOK_S = 0.2


class NoExecutorsError(RuntimeError):
    """A cluster gives this application no executors."""


def cluster_config(master: str, properties: dict[str, str], scratch: Path) -> dict[str, str]:
    """Return the session settings that differ on a cluster from those on one machine.

    `properties` are the user's, which override these.
    """
    config = {
        "spark.master": master,
        # Events never enter the executors' Java processes either: their Python workers need the memory.
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k",
        "spark.executor.syncLogLevel.enabled": "true",
        # An application runs for months, and its executors' logs would grow as long.
        "spark.executor.logs.rolling.strategy": "size",
        "spark.executor.logs.rolling.maxSize": str(16 << 20),
        "spark.executor.logs.rolling.maxRetainedFiles": "2",
        # A machine that stops responding is given up after this time, not after two minutes.
        "spark.executor.heartbeatInterval": "2s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "15000",
        "spark.network.timeoutInterval": "1s",
        # A task whose executor is too slow (it has just started, or hangs) is run on another one too. Both
        # write the same blocks, so it does not matter which one finishes first.
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
        # A container's temporary folder has a longer path than a socket's name may have.
        config["spark.python.unix.domain.socket.enabled"] = "false"
    if WORKER_PYTHON not in properties:
        archive = write_worker_archive(_writable(ARCHIVES, scratch))
        # YARN copies its archives to each node once; the other setting makes each executor fetch from the
        # driver.
        shipped = "spark.yarn.dist.archives" if master == "yarn" else "spark.archives"
        config |= {
            shipped: f"{archive.resolve().as_uri()}#{UNPACKED}",
            "spark.executorEnv.PYTHONPATH": f"./{UNPACKED}",
        }
    return config


def worker_python(properties: dict[str, str], scratch: Path) -> str:
    """Return the command that starts Python: on workers by name; here that name runs this interpreter."""
    if WORKER_PYTHON in properties:
        return properties[WORKER_PYTHON]
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = scratch.resolve() / "bin"
    if os.pathsep in str(folder):
        raise ValueError(
            f"with a cluster the path of the data directory must not hold {os.pathsep!r}: {folder}. Rename"
            f" it, or name the workers' Python in {WORKER_PYTHON}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Spark uses one name for all machines, also for processes that it starts here.
    (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (folder / name).chmod(0o700)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return name


def tasks_folder(context: SparkContext, folder: DataFolder) -> DataFolder:
    """Return a service's data directory as Spark's tasks see it."""
    return folder.for_tasks() if is_cluster(context.master) else folder


def slots_of(context: SparkContext) -> int:
    """Return the number of tasks that Spark can run at once now; on a cluster without executors 0."""
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


class ExecutorSlots:
    """Number of tasks that Spark runs at once: this machine's, or those of the present executors.

    Parameters
    ----------
    clock_s : callable
        Monotonic clock, in seconds.
    """

    def __init__(self, context: SparkContext, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._is_cluster = is_cluster(self._context.master)
        self._lost_s = LOST_S if self._context.master.startswith("spark://") else LOST_ELSEWHERE_S
        self._clock_s = clock_s
        self._there_s = clock_s()
        self._more_s: float | None = None
        self.planned = 0

    def executors(self) -> int:
        """Return the number of executors besides the driver."""
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1

    def figures(self) -> dict[str, int | None]:
        """Return the figures for the heartbeat; `executors` is None on this machine alone."""
        return {"cores": self.planned, "executors": self.executors() if self._is_cluster else None}

    def wait(self, stop: threading.Event, alive: Callable[[], object]) -> None:
        """Wait until there are executors and no more arrive; `alive` is called repeatedly meanwhile."""
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
        """Return the number of slots to plan batches for, and remember it in `planned`."""
        self._more_s = None
        self.planned = max(1, slots_of(self._context))
        return self.planned

    def has_grown(self) -> bool:
        """Return whether there have been more slots than planned for during `MORE_S`.

        Raises
        ------
        NoExecutorsError
            There were no executors for too long: a restarted master no longer knows this application.
        """
        if not self._is_cluster:
            return False
        now_s = self._clock_s()
        if self.executors():
            self._there_s = now_s
        elif now_s - self._there_s > self._lost_s:
            raise NoExecutorsError(f"the cluster gave this application no executor for {self._lost_s:.0f} s")
        if slots_of(self._context) <= self.planned:
            self._more_s = None
        elif self._more_s is None:
            self._more_s = now_s
        return self._more_s is not None and now_s - self._more_s >= MORE_S


def _address_towards(host: str) -> str:
    """Return this machine's address that a host can reach, judging by the local route to it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((host, 9))  # nothing is sent
        except OSError:
            return socket.getfqdn()
        return str(way.getsockname()[0])


def _writable(folder: Path, otherwise: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return otherwise
    return folder if os.access(folder, os.W_OK) else otherwise
