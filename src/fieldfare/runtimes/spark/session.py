"""The Spark session of the service: the settings that make small micro-batches fast and quiet.

What each setting is worth was measured; the figures are in ARCHITECTURE.md. A Spark job of a user's own
needs none of this: ``fieldfare.spark.match`` runs in any session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from fieldfare.runtimes.spark.cluster import cluster_config, worker_python
from fieldfare.runtimes.spark.master import is_cluster

_CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

CLASS_ARCHIVES = Path(sys.prefix) / "share" / "fieldfare"
"""Where `write_class_archive` writes: an archive is of this environment's jars, and goes with them."""

_LOG4J2 = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p spark %c{{1}}: %m%n%ex{{6}}
"""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What may be chosen about Spark.

    Attributes
    ----------
    cores : int
        Tasks that run at once, each in Python workers of its own (two for every task, 240 MB each and more,
        most of it shared). Default: as many as this process may use. Of a cluster: what it gives.
    driver_memory : str
        The Java heap. More is not faster: events never enter the JVM. Below 512m Spark spends its time
        collecting garbage.
    log_level : str
        What Spark itself writes to standard error. ``warn`` is rather talkative, ``error`` is what an
        operator wants to see.
    master : str, optional
        A cluster's address, ``spark://HOST:PORT``. Default: tasks run on this machine.
    properties : mapping
        Spark's own settings, over those of the service.
    """

    cores: int = 0
    driver_memory: str = "1g"
    log_level: str = "error"
    master: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def cores_used(self) -> int:
        return self.cores or usable_cores()


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_RETAINED = (
    "spark.ui.retainedJobs",
    "spark.ui.retainedStages",
    "spark.ui.retainedTasks",
    "spark.ui.retainedDeadExecutors",
    "spark.sql.ui.retainedExecutions",
)


def session_config(
    settings: SparkSettings, scratch: Path, more_java_options: Sequence[str] = ()
) -> dict[str, str]:
    """The service's Spark settings; `scratch` is a folder for what Spark writes and may lose."""
    log4j2 = scratch / "log4j2.properties"
    java_options = " ".join(
        (
            # The Java side only plans and passes on. Quickly compiled code serves it better than the best,
            # whose compiler takes the processor from the tasks for minutes.
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xss512k",
            "-XX:MaxMetaspaceSize=256m",
            f"-Dlog4j2.configurationFile={log4j2.resolve().as_uri()}",
            *(f'"{option}"' for option in more_java_options),
        )
    )
    if settings.master is not None and is_cluster(settings.master):
        placed = cluster_config(settings.master, dict(settings.properties), scratch)
    else:
        placed = {
            "spark.master": f"local[{settings.cores_used}]",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Every program of this machine reaches the ports: none gets in without this session's own secret.
            "spark.authenticate": "true",
            "spark.sql.shuffle.partitions": str(settings.cores_used),
        }
    return {
        "spark.app.name": "fieldfare",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": java_options,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.log.level": settings.log_level.upper(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Of what has ended nobody looks at anything: kept for a while, it grows old, and Java's heap with it.
        **dict.fromkeys(_RETAINED, "10"),
        # One task after another without waiting for a better place to run it: none is.
        "spark.locality.wait": "0",
        "spark.sql.adaptive.enabled": "false",
        # The work is in Python; generating Java code for what is left costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        # A batch as soon as there is one, none when there is nothing: the source waits for events itself.
        "spark.sql.streaming.pollingDelay": "1ms",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "20",
        "spark.sql.streaming.numRecentProgressUpdates": "20",
        # Writing the two checkpoint files of a batch: from 60 ms to 2.
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        # Java makes what it makes with modes of its own, whatever this process's umask is.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "fieldfare.runtimes.spark.worker_daemon",
        **placed,
        **settings.properties,
        # With it each task writes a line of which Spark's reader calls itself: it ended after some 3,600
        # tasks (StackOverflowError), and all that write stood still from then on.
        "spark.sql.pyspark.worker.logging.enabled": "false",
    }


def service_session(
    settings: SparkSettings,
    scratch: Path,
    extra: Mapping[str, str] | None = None,
    *,
    java_options: Sequence[str] | None = None,
) -> SparkSession:
    """Start the service's Spark session (seconds: a Java process starts).

    Parameters
    ----------
    settings : SparkSettings
    scratch : Path
        A folder for what Spark writes and may lose; made if it is not there.
    extra : mapping, optional
        Spark settings that go over the service's own.
    java_options : sequence of str, optional
        In place of those that make it begin with the archive of classes, if there is one.
    """
    if java_options is None:
        java_options = with_class_archive()
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "log4j2.properties").write_text(_LOG4J2.format(level=settings.log_level))
    if is_cluster(settings.master):
        os.environ["PYSPARK_PYTHON"] = worker_python(dict(settings.properties), scratch)
        if settings.master == "yarn":
            # Its containers have no Spark; ours is started from a folder without these, see below.
            archives = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
            os.environ.setdefault("PYSPARK_ARCHIVES_PATH", ",".join(map(str, archives)))
    else:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder
    for name, value in {**session_config(settings, scratch, java_options), **(extra or {})}.items():
        builder = builder.config(name, value)
    with _home_without_python(scratch):
        return _lightened(builder.getOrCreate())


def _lightened(session: SparkSession) -> SparkSession:
    """Without what its tasks in Python need not have."""
    context: Any = session.sparkContext
    # With each task that ends Spark's scheduler waits until this process has taken in what the task counted.
    # Nobody counts this way; and who listens here reports an end of the Java process as an error of its own.
    context._javaAccumulator = None
    # A plain job's processes are forked from one daemon, and a query's from another, if this differs.
    context.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"
    return session


def archive_name(size_bytes: int) -> str:
    """An archive of classes says its size in its name: on one that was cut short Java crashes."""
    return f"spark-{size_bytes}.jsa"


def with_class_archive() -> tuple[str, ...]:
    """Options that make Java begin with the archive of classes; nothing where there is none that is whole."""
    for path in CLASS_ARCHIVES.glob("spark-*.jsa"):
        if path.name == archive_name(path.stat().st_size):
            # What Java finds wrong with it is no output of the program's.
            return (f"-XX:SharedArchiveFile={path}", "-Xlog:disable", "-Xlog:all=warning:stderr")
    return ()


@contextmanager
def _home_without_python(scratch: Path) -> Iterator[None]:
    """Start Spark from a folder that has all of Spark's but its Python, unless somebody named a folder.

    The Python processes that Spark starts look for pyspark in that folder's ``python/lib/pyspark.zip`` first.
    It holds sources only, which each process compiles anew: 1.4 s of its processor time, and five start one
    after the other before the first event is matched. Without that file they import the compiled pyspark of
    this environment.
    """
    installed = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (installed / "jars").is_dir():
        yield
        return
    home = scratch.resolve() / "home"
    try:
        home.mkdir(exist_ok=True)
        for part in {"bin", "jars"} - {path.name for path in home.iterdir()}:
            (home / part).symlink_to(installed / part, target_is_directory=True)
    except OSError:  # a file system without symbolic links: it takes longer, and is the same
        home = installed
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


@contextmanager
def standard_error_to(path: Path) -> Iterator[None]:
    """Let the processes started inside write their standard error to a file.

    Spark and its Python workers report at length what the program itself says in a line, and every broken
    connection when they are stopped.
    """
    sys.stderr.flush()
    own = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
