"""The service's Spark session: settings that make small jobs fast and keep logs short.

Each setting's effect was measured; the figures are in ARCHITECTURE.md. A user's own Spark job needs none of
this: ``fieldfare.spark.match`` runs in any session.
"""

from __future__ import annotations

import locale
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from fieldfare.runtimes.spark.cluster import cluster_config, worker_python
from fieldfare.runtimes.spark.java import JavaError, check_java
from fieldfare.runtimes.spark.master import is_cluster

CLASS_ARCHIVES = Path(sys.prefix) / "share" / "fieldfare"
"""Folder of the class archives: inside the environment, to whose jars they belong."""

PLAIN, QUERIES = "plain", "queries"
"""The class archives: for a service, whose jobs are plain, and for sessions that plan queries. Java maps
nearly all of one, and the classes of queries would be 70 MB of a service's memory."""

_SOCKET_FOLDER_MAX_BYTES = 60
"""The path of a Unix socket has at most 107 bytes; Spark's names for sockets take 43 of them."""

_JAVA_END_S = 30.0
"""Seconds that Java has to exit; then it is killed."""

_ASCII = ("ANSI_X3.4-1968", "US-ASCII")
"""Names of the C locale's encoding."""

_NAMELESS_USER = "fieldfare"
"""User name for Hadoop if this process's user id has no name."""

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
    """Settings of Spark that users may choose.

    Attributes
    ----------
    cores : int
        Number of tasks that match batches at once, each in a Python worker of its own (at least 240 MB,
        mostly shared). Default: as many as this process may use. On a cluster: as many as it provides.
    driver_memory : str
        Size of the Java heap. More is not faster: events never enter the JVM. Below 512m Spark spends its
        time on garbage collection.
    log_level : str
        Level of Spark's own log on standard error. ``warn`` is verbose; ``error`` shows what an operator
        needs.
    master : str, optional
        A cluster's address, such as ``spark://HOST:PORT``. Default: tasks run on this machine.
    properties : mapping
        Spark properties, which override those of the service.
    """

    cores: int = 0
    driver_memory: str = "1g"
    log_level: str = "error"
    master: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def cores_used(self) -> int:
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return self.cores or there or 1


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
    """Return the service's Spark settings; `scratch` is a folder for temporary files of Spark."""
    log4j2 = scratch / "log4j2.properties"
    temporary = _temporary_folder(scratch)
    java_options = " ".join(
        (
            # The Java side only plans and passes on. Quickly compiled code serves it better than optimised
            # code, whose compiler takes CPU time from the tasks for minutes.
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xms32m",
            # A small young generation is collected in milliseconds; the old one shrinks after a collection.
            "-Xmn12m",
            "-XX:MinHeapFreeRatio=10",
            "-XX:MaxHeapFreeRatio=20",
            # Nothing reads the counters, which wake a thread 20 times per second.
            "-XX:-UsePerfData",
            "-Xss512k",
            "-XX:MaxMetaspaceSize=256m",
            f"-Dlog4j2.configurationFile={log4j2.resolve().as_uri()}",
            _quoted(f"-Djava.io.tmpdir={temporary}"),
            *map(_quoted, more_java_options),
        )
    )
    if settings.master is not None and is_cluster(settings.master):
        placed = cluster_config(settings.master, dict(settings.properties), scratch)
    else:
        placed = {
            "spark.master": f"local[{settings.cores_used}]",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Every program of this machine can reach the ports; only those with this session's secret are
            # accepted.
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
        # A killed task's Python process is ended soon; it may follow the log for long.
        "spark.python.task.killTimeout": "500ms",
        # Nothing reads the records of finished jobs; retained ones age and enlarge Java's heap.
        **dict.fromkeys(_RETAINED, "10"),
        # Start tasks without waiting for a better place to run them: there is none.
        "spark.locality.wait": "0",
        "spark.sql.adaptive.enabled": "false",
        # The work is in Python; generating Java code for the rest costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        # Java creates files with its own modes, whatever this process's umask is.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        **_unix_sockets(settings, temporary),
        "spark.python.daemon.module": "fieldfare.runtimes.spark.worker_daemon",
        **placed,
        **settings.properties,
        # With worker logging each task writes a line, on which Spark's reader recurses: after some 3,600
        # tasks it failed with a StackOverflowError, and every writing process blocked from then on.
        "spark.sql.pyspark.worker.logging.enabled": "false",
    }


def _temporary_folder(scratch: Path) -> Path:
    """Return a folder where Java can load unpacked libraries; /tmp comes second, as it may be small.

    Raises
    ------
    JavaError
        Both folders are mounted noexec, so no library can be loaded from them.
    """
    own, usual = scratch.resolve() / "tmp", Path(tempfile.gettempdir())
    if not _is_noexec(own):
        return own
    if not _is_noexec(usual):
        return usual
    raise JavaError(
        f"{own} and {usual} are mounted noexec, and Java loads libraries from one of them. Mount one without"
        " noexec, or set TMPDIR to another folder."
    )


def scratch_parent() -> Path:
    """A folder for the scratch folder of a session of its own: the usual one, unless it is mounted noexec."""
    usual = Path(tempfile.gettempdir())
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    others = (
        folder
        for folder in (usual, Path("/var/tmp"), caches)
        if os.access(folder, os.W_OK | os.X_OK) and not _is_noexec(folder)
    )
    return next(others, usual)


def _is_noexec(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))
    except OSError:  # the folder does not exist yet
        return False


def _unix_sockets(settings: SparkSettings, temporary: Path) -> dict[str, str]:
    """Where Java and its Python workers meet; by TCP, with a secret, where all folders have too long a path.

    On a cluster the folder is one of each machine. A Java process that runs already may keep the folder for
    later sessions, so it gets one that stays.
    """
    usual = Path(tempfile.gettempdir())
    must_stay = is_cluster(settings.master) or SparkContext._gateway is not None
    for folder in (usual,) if must_stay else (temporary, usual):
        if len(os.fsencode(folder)) <= _SOCKET_FOLDER_MAX_BYTES:
            found = {"spark.python.unix.domain.socket.dir": str(folder)}
            return {"spark.python.unix.domain.socket.enabled": "true", **found}
    return {"spark.python.unix.domain.socket.enabled": "false"}


def service_context(
    settings: SparkSettings,
    scratch: Path,
    extra: Mapping[str, str] | None = None,
    *,
    java_options: Sequence[str] | None = None,
) -> SparkContext:
    """Start the service's Spark; takes seconds, because a Java process starts.

    Without a session, which takes Java a second more. ``SparkSession(context)`` makes one where queries are
    planned.

    Parameters
    ----------
    scratch : Path
        A folder for temporary files of Spark; created if it does not exist.
    extra : mapping, optional
        Spark settings that override the service's own.
    java_options : sequence of str, optional
        Replaces the default options, which use the class archive if there is one.
    """
    check_java()
    if java_options is None:
        java_options = with_class_archive(PLAIN)
    (scratch / "tmp").mkdir(parents=True, exist_ok=True)
    (scratch / "log4j2.properties").write_text(_LOG4J2.format(level=settings.log_level))
    if is_cluster(settings.master):
        os.environ["PYSPARK_PYTHON"] = worker_python(dict(settings.properties), scratch)
        if settings.master == "yarn":
            # YARN's containers have no Spark; ours is started from a folder without these archives, see
            # below.
            archives = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
            os.environ.setdefault("PYSPARK_ARCHIVES_PATH", ",".join(map(str, archives)))
    else:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if locale.nl_langinfo(locale.CODESET) in _ASCII:  # Java could not name a file with an accent
        os.environ["LC_ALL"] = "C.UTF-8"
    config = {**session_config(settings, scratch, java_options), **(extra or {})}
    with _without_commas(config, scratch), _home_without_python(scratch), _temporary_in(scratch / "tmp"):
        _name_user(config, scratch)
        return _lightened(SparkContext.getOrCreate(SparkConf().setAll(list(config.items()))))


def service_session(
    settings: SparkSettings,
    scratch: Path,
    extra: Mapping[str, str] | None = None,
    *,
    java_options: Sequence[str] | None = None,
) -> SparkSession:
    """Start the service's Spark, with a session; see `service_context`."""
    if java_options is None:
        java_options = with_class_archive(QUERIES)
    return SparkSession(service_context(settings, scratch, extra, java_options=java_options))


def _quoted(option: str) -> str:
    """Return a Java option quoted for a string that holds several."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _name_user(config: dict[str, str], scratch: Path) -> None:
    """Give the user a name and a home if the user id has no name: Hadoop would abort Java otherwise.

    This happens in containers that are started with a numeric user.
    """
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        name = os.environ.setdefault("SPARK_USER", os.environ.get("HADOOP_USER_NAME") or _NAMELESS_USER)
        config["spark.driver.extraJavaOptions"] += f" {_quoted(f'-Duser.home={scratch.resolve()}')}"
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(config.items())))
        users: Any = SparkContext._jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser(name))


@contextmanager
def _temporary_in(folder: Path) -> Iterator[None]:
    """Make PySpark exchange files with Java in this folder: the default one may be full."""
    usual = tempfile.tempdir
    tempfile.tempdir = str(folder.resolve())
    try:
        yield
    finally:
        tempfile.tempdir = usual


@contextmanager
def _without_commas(config: dict[str, str], scratch: Path) -> Iterator[None]:
    """Name Spark's scratch folder by a path without commas, which would separate several folders.

    Spark follows the link once, when it starts.
    """
    if config["spark.local.dir"] != str(scratch) or "," not in str(scratch):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "local"
        link.symlink_to(scratch.resolve(), target_is_directory=True)
        config["spark.local.dir"] = str(link)
        yield


def _lightened(context: Any) -> SparkContext:
    """Disable features of Spark that its Python tasks do not need."""
    # At the end of each task Spark's scheduler waits until this process has added the task's accumulators.
    # They are not used here; and with a listener the Java process's exit is reported as an additional error.
    context._javaAccumulator = None
    # If this differs between them, plain jobs and queries fork their processes from separate daemons.
    context.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"
    return context


def archive_name(kind: str, size_bytes: int) -> str:
    """Return the file name of a class archive; it contains the size, because a truncated one crashes Java."""
    return f"{kind}-{size_bytes}.jsa"


def with_class_archive(kind: str) -> tuple[str, ...]:
    """Return the options that make Java use a class archive; none if there is no complete one."""
    for path in CLASS_ARCHIVES.glob(f"{kind}-*.jsa"):
        if path.name == archive_name(kind, path.stat().st_size):
            # Java's complaints about it are no output of the program.
            # At a random address Java would write to nearly every page of the archive: 110 MB of memory.
            at_its_address = "-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"
            return (
                f"-XX:SharedArchiveFile={path}",
                *at_its_address,
                "-Xlog:disable",
                "-Xlog:all=warning:stderr",
            )
    return ()


@contextmanager
def _home_without_python(scratch: Path) -> Iterator[None]:
    """Start Spark from a folder with everything of Spark's except its Python, unless SPARK_HOME is set.

    Python processes that Spark starts look for pyspark in that folder's ``python/lib/pyspark.zip`` first. It
    holds only sources, which each process compiles again: 1.4 s of CPU time, and five processes start one
    after the other before the first event is matched. Without that file they import this environment's
    compiled pyspark.
    """
    installed = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (installed / "jars").is_dir():
        yield
        return
    home = scratch.resolve() / "home"
    try:
        link_home(home)
    except OSError:  # without symbolic links: slower, but otherwise equal
        home = installed
    if os.pathsep in str(home):  # Java would read it as two entries of its class path
        home = installed
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def link_home(home: Path) -> None:
    """Make a folder from which Spark starts: links to everything of Spark's except its Python.

    The class path then names each jar once. Spark's launcher puts slf4j's jar before ``jars/*``, which names
    it again; Java 21 uses no class archive then. The wildcard leaves out a name that does not end with
    ``.jar``.
    """
    installed, links = Path(pyspark.__file__).parent, home / "jars"
    home.mkdir(parents=True, exist_ok=True)
    if links.is_symlink():  # of an earlier version
        links.unlink()
    links.mkdir(exist_ok=True)
    if not (home / "bin").exists():
        (home / "bin").symlink_to(installed / "bin", target_is_directory=True)
    wanted = {
        jar.name.removesuffix(".jar") if jar.name.startswith("slf4j-api-") else jar.name: jar
        for jar in (installed / "jars").iterdir()
    }
    for link in links.iterdir():
        if link.name not in wanted or link.resolve() != wanted[link.name].resolve():
            link.unlink()
    for name, jar in wanted.items():
        if not (links / name).is_symlink():
            (links / name).symlink_to(jar)


@contextmanager
def own_java() -> Iterator[None]:
    """End the Java process that a session starts inside, unless one runs already.

    A Java process keeps the folders of its first session (for temporary files and sockets), also after that
    session's end: with these deleted, no later session would work.
    """
    is_running = SparkContext._gateway is not None
    try:
        yield
    finally:
        gateway: Any = SparkContext._gateway
        if gateway is not None and not is_running:
            SparkContext._gateway = SparkContext._jvm = None
            gateway.shutdown()
            if gateway.proc is not None:  # else the environment names a process that this one did not start
                end_java(gateway.proc)


def end_java(java: subprocess.Popen[bytes], wait_s: float = _JAVA_END_S) -> None:
    """End Spark's Java process, which exits at the end of its input; kill it if that takes longer."""
    if java.stdin is not None:
        java.stdin.close()
    try:
        java.wait(wait_s)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


@contextmanager
def standard_error_to(path: Path, *others: int) -> Iterator[None]:
    """Redirect standard error to a file, for this process and the processes started inside.

    Spark and its Python workers report at length what the program itself reports in one line, and every
    broken connection when they are stopped. `others` are further descriptors to redirect.
    """
    sys.stderr.flush()
    own = {number: os.dup(number) for number in (2, *others)}
    try:
        with path.open("ab") as file:
            for number in own:
                os.dup2(file.fileno(), number)
        yield
    finally:
        for number, saved in own.items():
            os.dup2(saved, number)
            os.close(saved)
