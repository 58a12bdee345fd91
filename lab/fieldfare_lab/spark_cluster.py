"""A standalone Spark cluster on loopback: a master and workers, as separate processes, from PySpark's jars.

    python -m fieldfare_lab.spark_cluster fieldfare demo --master spark://

runs a command with a cluster that lasts as long as the command: the argument ``spark://`` is replaced by the
cluster's address.

Workers have the Python that this environment was created from, without its packages, and their own home
directory: everything that a task needs beyond Python and Spark must be sent to them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import pyspark

from fieldfare.runtimes.process.parents import signal_at_parents_death
from fieldfare_lab.cpu_group import CpuGroup, why_no_groups
from fieldfare_lab.ports import find_free_port

READY_S = 180.0
_SPARK_HOME = Path(pyspark.__file__).parent
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"


def why_no_cluster() -> str | None:
    """Return what is missing here for a cluster, or None."""
    if find_spec("pyspark") is None or not (_SPARK_HOME / "bin" / "spark-class").exists():
        return "PySpark is not installed with its jars"
    if shutil.which("java") is None:
        return "there is no Java"
    return None


class _Process:
    """A Java process of the cluster with its children: represents a machine.

    Parameters
    ----------
    name
        Name of its log.
    folder
        Its working directory.
    cores
        CPU time that it may use, in cores; None: no limit.
    """

    def __init__(self, name: str, folder: Path, cores: float | None) -> None:
        self.name = name
        self.folder = folder
        self.group = CpuGroup(cores) if cores is not None and why_no_groups() is None else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._end_with_parent = signal_at_parents_death()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(_SPARK_HOME / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
                preexec_fn=self._begin,
            )

    def _begin(self) -> None:
        """In the new process: join its group, and exit with the parent process, however that ends."""
        if self.group is not None:
            self.group.join()
        if self._end_with_parent is not None:
            self._end_with_parent()

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill it and its children, like a power failure of its machine."""
        if self._process is None:
            return
        if self.group is not None:
            self.group.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(READY_S)

    def close(self) -> None:
        self.kill()
        if self.group is not None:
            self.group.close()


class SparkCluster:
    """A master and workers; `close` kills them.

    Parameters
    ----------
        workers
        Number of workers.
    worker_cores
        Concurrent tasks per worker.
    cpu_limit
        CPU time, in cores, that each worker may use with its child processes, if control groups can be
        created.
    """

    def __init__(self, workers: int = 3, worker_cores: int = 1, cpu_limit: float | None = None) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="spark-cluster-")
        self.folder = Path(self._held.name)
        self.port = find_free_port()
        self._worker_cores = worker_cores
        self._cpu_limit = cpu_limit
        self._master = _Process("master", self.folder / "master", None)
        self.workers: list[_Process] = []
        try:
            self.start_master()
            for _ in range(workers):
                self.add_worker()
            self.wait_for_workers()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """``spark://HOST:PORT``."""
        return f"spark://127.0.0.1:{self.port}"

    def start_master(self) -> None:
        """Start the master; after a kill, on its recorded state of the cluster."""
        recovery = {
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(self.folder / "recovery"),
            # How long a new master waits for a lost driver or worker; the default is a minute.
            "spark.deploy.recoveryTimeout": "10s",
        }
        options = " ".join(f"-D{name}={value}" for name, value in recovery.items())
        self._start(
            self._master,
            ["org.apache.spark.deploy.master.Master", "--port", str(self.port), "--webui-port", "0"],
            {"SPARK_MASTER_OPTS": options},
        )
        give_up_s = time.monotonic() + READY_S
        while time.monotonic() < give_up_s and self._master.is_running:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            time.sleep(0.05)
        raise RuntimeError(f"the Spark master did not start:\n{_tail(self._master.log)}")

    def kill_master(self) -> None:
        self._master.kill()

    def add_worker(self) -> None:
        """Start another worker."""
        number = len(self.workers)
        worker = _Process(f"worker-{number}", self.folder / f"worker-{number}", self._cpu_limit)
        self.workers.append(worker)
        self.start_worker(number)

    def start_worker(self, number: int) -> None:
        """Restart a worker that was killed."""
        worker = self.workers[number]
        place = ["--webui-port", "0", "--work-dir", str(worker.folder / "work")]
        size = ["--cores", str(self._worker_cores), "--memory", "1g"]
        self._start(
            worker, ["org.apache.spark.deploy.worker.Worker", *place, *size, self.address], _of_worker(worker)
        )

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, like a power failure of its machine."""
        self.workers[number].kill()

    def limit(self, cores: float) -> None:
        """Change the CPU limit of each worker that has one, in cores."""
        for worker in self.workers:
            if worker.group is not None:
                worker.group.limit(cores)

    def wait_for_workers(self) -> None:
        """Wait until the master knows all running workers."""
        give_up_s = time.monotonic() + READY_S
        while time.monotonic() < give_up_s:
            if all("Successfully registered" in _tail(each.log) for each in self.workers if each.is_running):
                return
            time.sleep(0.1)
        raise RuntimeError("the workers did not register with the master:\n" + _tail(self.workers[-1].log))

    def close(self) -> None:
        """Kill all processes, and remove their files."""
        for each in (*self.workers, self._master):
            each.close()
        self._held.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self, process: _Process, arguments: list[str], more: dict[str, str]) -> None:
        base = Path(sys.base_prefix) / "bin"
        environment = {
            # Python as it was installed, without this environment's packages.
            "PATH": f"{base}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(process.folder),
            "LANG": "C.UTF-8",
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_HOST": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
            **more,
        }
        java = os.environ.get("JAVA_HOME")
        process.start(arguments, {**environment, **({"JAVA_HOME": java} if java else {})})


def _of_worker(worker: _Process) -> dict[str, str]:
    scratch = worker.folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    return {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-8_000:]
    except FileNotFoundError:
        return ""


def main(arguments: list[str] | None = None) -> int:
    """Run a command with a cluster, see above; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m fieldfare_lab.spark_cluster")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpu-limit", type=float, default=None)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if (reason := why_no_cluster()) is not None:
        print(f"there can be no Spark cluster here: {reason}", file=sys.stderr)
        return 1
    with SparkCluster(options.workers, cpu_limit=options.cpu_limit) as cluster:
        command = [cluster.address if each == "spark://" else each for each in options.command]
        return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
