"""Start and end of the pipeline's Spark: its Java process, and warm Python workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext

from fieldfare.runtimes.process.locks import write_pid
from fieldfare.runtimes.spark.cluster import ExecutorSlots
from fieldfare.runtimes.spark.master import is_cluster
from fieldfare.runtimes.spark.session import SparkSettings, end_java, service_context
from fieldfare.runtimes.spark.warmup import warm_workers
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.kafka.address import KafkaAddress

JAVA_ENDS_S = 10.0
FOLLOWING_JOBS = 2
"""Jobs that follow the log at a time, beside those that match batches."""


@dataclass(frozen=True, slots=True)
class RunningSpark:
    """Spark, its Java process, and the slots for its tasks."""

    context: SparkContext
    java: subprocess.Popen[bytes]
    slots: ExecutorSlots

    def end(self) -> None:
        """Stop Spark and its Java process, which exits when its standard input closes."""
        with suppress(Py4JError, OSError):
            self.context.stop()
        end_java(self.java, JAVA_ENDS_S)


def start_spark(
    folder: DataFolder,
    settings: SparkSettings,
    more: Mapping[str, str],
    stop: threading.Event,
    alive: Callable[[], None] = lambda: None,
    *,
    pid_file: Path | None = None,
) -> RunningSpark:
    """Start Spark, and its Python workers, so that they have loaded what they need.

    Parameters
    ----------
    folder
        The data directory; Spark's temporary files are in a folder of this process in it.
    settings
        Settings of Spark that users may choose.
    more
        Additional properties.
    stop
        Ends the wait for executors of a cluster.
    alive
        Called repeatedly during that wait.
    pid_file
        Where to note the Java process for the next pipeline, which waits for its end.
    """
    config = {**_following_config(folder, settings), **more, **settings.properties}
    scratch = scratch_of(folder, os.getpid()).resolve()
    # In a container the processes of each start have the same ids.
    shutil.rmtree(scratch, ignore_errors=True)
    context = service_context(settings, scratch, config)
    running = RunningSpark(context, context._gateway.proc, ExecutorSlots(context))
    try:
        if pid_file is not None:
            write_pid(pid_file, running.java.pid)
        running.slots.wait(stop, alive)
        if not stop.is_set():
            warm_workers(context, running.slots.plan())
    except BaseException:
        running.end()
        raise
    return running


def scratch_of(folder: DataFolder, pid: int) -> Path:
    """Return the folder for the temporary files of a pipeline's Spark."""
    return folder.spark_scratch / str(pid)


def remove_scratch(folder: DataFolder) -> None:
    """Remove the temporary files of earlier pipelines."""
    with suppress(OSError):
        for path in folder.spark_scratch.iterdir():
            if path.name != str(os.getpid()):
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):  # A file or a link of an earlier version.
                    path.unlink()


def _following_config(folder: DataFolder, settings: SparkSettings) -> dict[str, str]:
    """Return settings that leave batches all cores while tasks, which mostly sleep, follow the log."""
    if is_cluster(settings.master):
        return {}
    partitions = 1 if folder.log is None else KafkaAddress.parse(folder.log, "event log").partitions or 1
    cores = settings.cores_used
    slots = cores + FOLLOWING_JOBS * min(cores, partitions)
    return {"spark.master": f"local[{slots}]", "spark.default.parallelism": str(cores)}
