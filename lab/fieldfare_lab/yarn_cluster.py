"""YARN on loopback, for tests: a ResourceManager and a NodeManager from Maven's jars, ended by their ids.

It needs Java and Maven; `why_no_yarn` says what is missing. The jars lie in ``.kafka/yarn``, beside those of
the broker. Containers have the Python that this environment was made from, and none of its packages.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape

import pyspark

from fieldfare.runtimes.process.parents import signal_at_parents_death
from fieldfare_lab.kafka_broker import find_free_port
from fieldfare_lab.maven import fetched

VERSION = "3.5.0"
READY_S = 90.0
_PARTS = (
    *("yarn-server-resourcemanager", "yarn-server-nodemanager", "yarn-server-timelineservice"),
    *("yarn-client", "hdfs-client", "common"),
)
ARTIFACTS = tuple(f"org.apache.hadoop:hadoop-{name}:{VERSION}" for name in _PARTS)
MEMORY_MB, CORES = 16_384, 4
_PORTS = (
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


def why_no_yarn() -> str | None:
    """What is missing here, or None. The first call may fetch jars."""
    if shutil.which("java") is None:
        return "there is no Java"
    return fetched("yarn", ARTIFACTS)[1]


class YarnCluster:
    """One machine of YARN; all ends with `close`.

    Attributes
    ----------
    configuration : Path
        What ``HADOOP_CONF_DIR`` is to name.
    """

    def __init__(self) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="yarn-")
        self.folder = Path(self._held.name)
        self.configuration = self.folder / "conf"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._configure()
        package = "org.apache.hadoop.yarn.server"
        try:
            self._start("resourcemanager", f"{package}.resourcemanager.ResourceManager")
            self._start("nodemanager", f"{package}.nodemanager.NodeManager")
            self._wait_for("registered with capability")
        except BaseException:
            self.close()
            raise

    address = "yarn"

    @property
    def environment(self) -> dict[str, str]:
        """What whoever starts Spark is to have in its environment."""
        return {"HADOOP_CONF_DIR": str(self.configuration)}

    @property
    def properties(self) -> dict[str, str]:
        """What Spark is told besides: what Java needs is on every machine already."""
        return {
            "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
            "spark.yarn.stagingDir": (self.folder / "staging").as_uri(),
            "spark.executor.instances": "2",
            "spark.executor.memoryOverhead": "2g",
        }

    def running(self) -> list[int]:
        """The Java processes of the executors that run now."""
        found = []
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = each.read_bytes()
            except OSError:
                continue
            name = line.partition(b"\0")[0].rpartition(b"/")[2]
            if name == b"java" and b"YarnCoarseGrainedExecutorBackend" in line and self._is_mine(line):
                found.append(int(each.parent.name))
        return sorted(found)

    def kill(self, executor: int) -> None:
        """End one."""
        os.kill(executor, signal.SIGKILL)

    def _is_mine(self, line: bytes) -> bool:
        return str(self.folder).encode() in line

    def logs(self) -> str:
        """What its processes and the containers say."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("logs/*/*/*")]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in paths)

    def close(self) -> None:
        """End all, and remove what was written."""
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)
        for process in reversed(self._processes):
            process.kill()
            process.wait(READY_S)
        self._held.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _configure(self) -> None:
        self.configuration.mkdir()
        (self.configuration / "log4j.properties").write_text(_LOG4J)
        settings = {f"yarn.{name}": f"127.0.0.1:{find_free_port()}" for name in _PORTS} | {
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
        }
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self.folder / "tmp")}
        for name, each in (("yarn-site", settings), ("core-site", core), ("capacity-scheduler", _QUEUES)):
            lines = [
                f"<property><name>{key}</name><value>{escape(value)}</value></property>"
                for key, value in each.items()
            ]
            text = "\n".join(["<configuration>", *lines, "</configuration>\n"])
            (self.configuration / f"{name}.xml").write_text(text)

    def _start(self, name: str, program: str) -> None:
        jars, _ = fetched("yarn", ARTIFACTS)
        java = Path(shutil.which("java") or "java").resolve()
        environment = {
            "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "JAVA_HOME": str(java.parents[1]),
        }
        command = [str(java), *_JAVA, f"-Dhadoop.home.dir={self.folder}", "-cp"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, f"{self.configuration}:{jars}/*", program],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env=environment,
                    preexec_fn=signal_at_parents_death(),
                )
            )

    def _wait_for(self, said: str) -> None:
        log, give_up_s = self.folder / "resourcemanager.log", time.monotonic() + READY_S
        while said not in log.read_text(errors="replace"):
            if time.monotonic() > give_up_s or any(each.poll() is not None for each in self._processes):
                raise RuntimeError(f"YARN did not start:\n{self.logs()}")
            time.sleep(0.1)
