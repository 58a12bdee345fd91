"""Hadoop on loopback, for tests: real daemons of YARN or HDFS from Maven's jars, killed by their ids.

It needs Java and Maven; `why_no_hadoop` tells what is missing. The jars are stored beside those of the
broker.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self
from xml.sax.saxutils import escape

import pyspark

from fieldfare.runtimes.process.parents import signal_at_parents_death
from fieldfare_lab.maven import fetched
from fieldfare_lab.ports import find_free_port

VERSION = "3.5.0"
READY_S = 180.0
ARTIFACTS = tuple(
    f"org.apache.hadoop:hadoop-{name}:{VERSION}"
    for name in (
        *("common", "hdfs", "hdfs-client", "yarn-client"),
        *("yarn-server-resourcemanager", "yarn-server-nodemanager", "yarn-server-timelineservice"),
    )
)
MEMORY_MB, CORES = 16_384, 4
_YARN_PORTS = (
    "resourcemanager.address",
    "resourcemanager.scheduler.address",
    "resourcemanager.resource-tracker.address",
    "resourcemanager.admin.address",
    "resourcemanager.webapp.address",
    "nodemanager.address",
    "nodemanager.localizer.address",
    "nodemanager.webapp.address",
)
_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
}
_LOG4J = """\
log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{HH:mm:ss} %p %c{1}: %m%n
"""
_JAVA = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx384m",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)


def why_no_hadoop() -> str | None:
    """Return what is missing here, or None. The first call may download jars."""
    if shutil.which("java") is None:
        return "there is no Java"
    return fetched("hadoop-yarn", ARTIFACTS)[1]


class _Daemons:
    """Java processes with a common Hadoop configuration; `close` kills them.

    Attributes
    ----------
    configuration : Path
        The value for ``HADOOP_CONF_DIR``.
    """

    def __init__(self) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="hadoop-")
        self.folder = Path(self._held.name)
        self.configuration = self.folder / "conf"
        self.configuration.mkdir()
        (self.configuration / "log4j.properties").write_text(_LOG4J)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that clients need."""
        return {"HADOOP_CONF_DIR": str(self.configuration)}

    def logs(self) -> str:
        """Return the output of the processes."""
        return "\n".join(_said(path) for path in self.folder.glob("*.log"))

    def close(self) -> None:
        """Kill all processes, and remove their files."""
        for name in reversed(list(self._processes)):
            self._kill(name)
        self._held.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _configure(self, name: str, settings: Mapping[str, str]) -> None:
        lines = [
            f"<property><name>{key}</name><value>{escape(value)}</value></property>"
            for key, value in settings.items()
        ]
        text = "\n".join(["<configuration>", *lines, "</configuration>\n"])
        (self.configuration / f"{name}.xml").write_text(text)

    def _start(self, name: str, program: str, *arguments: str) -> None:
        java = Path(shutil.which("java") or "java").resolve()
        environment = {
            # Python as it was installed, without this environment's packages.
            "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "JAVA_HOME": str(java.parents[1]),
        }
        options = [*_JAVA, f"-Dhadoop.home.dir={self.folder}"]
        path = f"{self.configuration}:{fetched('hadoop-yarn', ARTIFACTS)[0]}/*"
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(java), *options, "-cp", path, f"org.apache.hadoop.{program}", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
                preexec_fn=signal_at_parents_death(),
            )

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait(READY_S)

    def _wait_for(self, name: str, said: str, times: int = 1) -> None:
        log, give_up_s = self.folder / f"{name}.log", time.monotonic() + READY_S
        while log.read_text(errors="replace").count(said) < times:
            gone = any(each.poll() is not None for each in self._processes.values())
            if gone or time.monotonic() > give_up_s:
                raise RuntimeError(f"Hadoop did not start:\n{self.logs()}")
            time.sleep(0.1)


class YarnCluster(_Daemons):
    """A ResourceManager and a NodeManager, whose containers lack this environment's packages.

    Parameters
    ----------
    files
        The address of the file system through which applications send files to their containers.
    """

    address: ClassVar[str] = "yarn"

    def __init__(self, files: str = "file:///") -> None:
        super().__init__()
        self._configure("core-site", {"fs.defaultFS": files, "hadoop.tmp.dir": str(self.folder / "tmp")})
        self._configure("capacity-scheduler", _QUEUES)
        self._configure(
            "yarn-site",
            {f"yarn.{name}": f"127.0.0.1:{find_free_port()}" for name in _YARN_PORTS}
            | {
                "yarn.resourcemanager.hostname": "127.0.0.1",
                "yarn.nodemanager.hostname": "127.0.0.1",
                "yarn.nodemanager.resource.memory-mb": str(MEMORY_MB),
                "yarn.nodemanager.resource.cpu-vcores": str(CORES),
                "yarn.scheduler.minimum-allocation-mb": "128",
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.local-dirs": str(self.folder / "local"),
                "yarn.nodemanager.log-dirs": str(self.folder / "logs"),
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
                "yarn.nodemanager.delete.debug-delay-sec": "600",
                "yarn.node-attribute.fs-store.root-dir": (self.folder / "attributes").as_uri(),
            },
        )
        try:
            self._start("resourcemanager", "yarn.server.resourcemanager.ResourceManager")
            self._start("nodemanager", "yarn.server.nodemanager.NodeManager")
            self._wait_for("resourcemanager", "registered with capability")
        except BaseException:
            self.close()
            raise

    @property
    def properties(self) -> dict[str, str]:
        """Additional properties for Spark: every machine has Spark's jars already."""
        return {
            "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
            "spark.executor.instances": "2",
            "spark.executor.memoryOverhead": "2g",
        }

    def running(self) -> set[int]:
        """Return the ids of the running executors' Java processes."""
        found = set()
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = each.read_bytes()
            except OSError:
                continue
            name = line.partition(b"\0")[0].rpartition(b"/")[2]
            is_mine = str(self.folder).encode() in line
            if is_mine and name == b"java" and b"YarnCoarseGrainedExecutorBackend" in line:
                found.add(int(each.parent.name))
        return found

    def kill(self, executor: int) -> None:
        """Kill an executor, like a power failure."""
        os.kill(executor, signal.SIGKILL)

    def logs(self) -> str:
        """Return the output of the daemons and of their containers."""
        return "\n".join([super().logs(), *(_said(path) for path in self.folder.glob("logs/*/*/*"))])

    def close(self) -> None:
        """Kill all processes, and remove their files."""
        if "nodemanager" in self._processes:
            self._kill("nodemanager")  # it would start others
        for pid in self.running():
            self.kill(pid)
        super().close()


class HdfsCluster(_Daemons):
    """A NameNode and a DataNode."""

    def __init__(self) -> None:
        super().__init__()
        self.port = find_free_port()
        self._starts = 0
        self._configure("core-site", {"fs.defaultFS": self.address, "hadoop.tmp.dir": str(self.folder)})
        # pages that are missing from the jars, without which nothing starts
        for name in ("hdfs", "datanode"):
            (self.configuration / "webapps" / name).mkdir(parents=True)
        web = {f"dfs.{name}": f"127.0.0.1:{find_free_port()}" for name in _HDFS_PORTS}
        self._configure(
            "hdfs-site",
            web
            | {
                "dfs.replication": "1",
                "dfs.heartbeat.interval": "1",
                "dfs.namenode.safemode.extension": "0",
                "dfs.namenode.name.dir": str(self.folder / "names"),
                "dfs.datanode.data.dir": str(self.folder / "data"),
            },
        )
        try:
            self._start("format", "hdfs.server.namenode.NameNode", "-format", "-nonInteractive")
            self._processes.pop("format").wait(READY_S)
            self._start("datanode", "hdfs.server.datanode.DataNode")
            self.start_namenode()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """``hdfs://HOST:PORT``."""
        return f"hdfs://127.0.0.1:{self.port}"

    def start_namenode(self) -> None:
        """Start the NameNode on its existing files; returns when it knows all blocks."""
        self._starts += 1
        self._start("namenode", "hdfs.server.namenode.NameNode")
        self._wait_for("namenode", "hasStaleStorage: false", self._starts)

    def kill_namenode(self) -> None:
        """Kill the NameNode, like a power failure."""
        self._kill("namenode")


_HDFS_PORTS = (
    "namenode.http-address",
    "datanode.address",
    "datanode.http.address",
    "datanode.ipc.address",
)


def _said(path: Path) -> str:
    return f"--- {path}\n{path.read_text(errors='replace')[-1500:]}"
