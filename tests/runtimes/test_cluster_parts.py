"""Parts of a service on a cluster, without a cluster: settings, the archive, slots, returned blocks."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fieldfare
from fieldfare.runtimes.spark import worker_archive
from fieldfare.runtimes.spark.cluster import (
    LOST_ELSEWHERE_S,
    LOST_S,
    MORE_S,
    SETTLED_S,
    ExecutorSlots,
    NoExecutorsError,
    cluster_config,
    worker_python,
)
from fieldfare.runtimes.spark.master import check_master, is_cluster, read_properties
from fieldfare.runtimes.spark.replay_task import BlockCollector
from fieldfare.runtimes.spark.session import SparkSettings, session_config
from fieldfare.storage import NewMatchBlock, open_match_log
from fieldfare_lab.cpu_group import CpuGroup, why_no_groups


@pytest.mark.parametrize(
    "master", ["spark://h:7077", "spark://a:1,b:2", "spark://10.0.0.1:7077", "yarn", "k8s://https://h:443"]
)
def test_the_address_of_a_cluster_is_taken(master: str) -> None:
    check_master(master)
    assert is_cluster(master)


@pytest.mark.parametrize(
    "master", ["", "spark://", "spark://host", "spark://h:p", "local[4]", "http://h:1", "spark://h:1/x"]
)
def test_an_invalid_cluster_address_is_refused(master: str) -> None:
    with pytest.raises(ValueError, match=r"spark://HOST:PORT"):
        check_master(master)


def test_properties_are_read_as_spark_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "spark.conf"
    path.write_text("# ours\n\nspark.cores.max 12\nspark.a=b = c\n  spark.executor.memory\t1g  \n")
    assert read_properties(path) == {
        "spark.cores.max": "12",
        "spark.a": "b = c",
        "spark.executor.memory": "1g",
    }
    path.write_text("spark.cores.max 12\nspark.nothing\n")
    with pytest.raises(ValueError, match=r"spark\.conf, line 2: expected a Spark property"):
        read_properties(path)


def test_properties_go_over_the_service_s_own(tmp_path: Path) -> None:
    own = session_config(SparkSettings(cores=3), tmp_path)
    assert (own["spark.master"], own["spark.authenticate"]) == ("local[3]", "true")
    properties = {"spark.executor.memory": "3g", "spark.pyspark.python": "/opt/env/bin/python"}
    settings = SparkSettings(master="spark://127.0.0.1:7077", properties=properties)
    found = session_config(settings, tmp_path)
    assert (found["spark.master"], found["spark.executor.memory"]) == ("spark://127.0.0.1:7077", "3g")
    assert found["spark.driver.host"] == "127.0.0.1" and "spark.authenticate" not in found
    # With a Python of the user's own on the workers, no archive is sent.
    assert "spark.archives" not in found and "spark.executorEnv.PYTHONPATH" not in found
    assert worker_python(properties, tmp_path) == "/opt/env/bin/python"


def test_the_python_of_the_workers_is_this_one_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark starts the source's process on this machine by the name that Python has on the workers."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    name = worker_python({}, tmp_path)
    assert name == f"python{sys.version_info.major}.{sys.version_info.minor}"
    asked = [name, "-c", "import sys; print(sys.prefix)"]
    assert subprocess.run(asked, capture_output=True, text=True).stdout.strip() == sys.prefix


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of this package that no other process changes: tests beside compile modules and kernels."""
    copy = tmp_path / "copy"
    shutil.copytree(
        Path(fieldfare.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "*.tmp")
    )
    monkeypatch.setattr(worker_archive.fieldfare, "__file__", str(copy / "__init__.py"))
    return copy


def test_the_archive_holds_this_package_as_it_is_here_and_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    monkeypatch.setattr(worker_archive, "DISTRIBUTIONS", ("msgspec", "no-such-package"))
    path = worker_archive.write_worker_archive(tmp_path)
    written_ns = path.stat().st_ino
    assert worker_archive.write_worker_archive(tmp_path).stat().st_ino == written_ns
    subprocess.run(["tar", "-xzf", str(path)], cwd=tmp_path, check=True)
    for name in ("runtimes/spark/worker_daemon.py", "matching/plain/search/kernels.py"):
        found, source = (tmp_path / "fieldfare" / name).stat(), (package / name).stat()
        # A compiled kernel counts for the file of exactly this time.
        assert (found.st_mtime_ns, found.st_size) == (source.st_mtime_ns, source.st_size)
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert "msgspec/__init__.py" in names and not any("/tests/" in name for name in names)
    program = "import fieldfare.runtimes.spark.master, msgspec; print(msgspec.__file__)"
    bare = [sys.executable, "-S", "-c", program]
    said = subprocess.run(bare, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert str(tmp_path) in said.stdout, said.stderr


@pytest.mark.usefixtures("package")
def test_a_cluster_s_settings_name_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_archive, "DISTRIBUTIONS", ())
    monkeypatch.setattr("fieldfare.runtimes.spark.cluster.ARCHIVES", tmp_path)
    found = cluster_config("spark://127.0.0.1:7077", {}, tmp_path)
    path = found["spark.archives"].removeprefix("file://").removesuffix("#fieldfare")
    assert Path(path).is_file() and found["spark.executorEnv.PYTHONPATH"] == "./fieldfare"
    # There executors would each fetch and unpack it from the driver besides.
    on_yarn = cluster_config("yarn", {}, tmp_path)
    assert on_yarn["spark.yarn.dist.archives"] == found["spark.archives"] and "spark.archives" not in on_yarn
    assert on_yarn["spark.python.unix.domain.socket.enabled"] == "false"


class Cluster:
    """A Spark context, as far as it is asked how many executors and slots there are; and a clock."""

    def __init__(self, executors: int, cores: int, master: str = "spark://h:1") -> None:
        self.executors, self.cores, self.master = executors, cores, master
        profile = object()
        status = SimpleNamespace(
            getExecutorMemoryStatus=lambda: SimpleNamespace(size=self.size),
            resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: profile),
            maxNumConcurrentTasks=lambda asked: self.cores if asked is profile else 0,
        )
        self._jsc = SimpleNamespace(sc=lambda: status)
        self.now_s = 0.0

    @property
    def defaultParallelism(self) -> int:
        """On a cluster Spark never says fewer than two."""
        return self.cores if self.master.startswith("local") else max(2, self.cores)

    def size(self) -> int:
        return self.executors + 1

    def slots(self) -> ExecutorSlots:
        context: Any = self
        return ExecutorSlots(context, lambda: self.now_s)


def test_a_local_session_does_not_wait_for_executors() -> None:
    slots = Cluster(0, 2, "local[2]").slots()
    slots.wait(threading.Event(), lambda: None)
    assert slots.plan() == 2 and not slots.has_grown()


def test_the_first_batch_waits_until_no_more_executors_come() -> None:
    cluster = Cluster(0, 2)
    slots, beats = cluster.slots(), 0

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            cluster.now_s += 0.5
            cluster.executors = min(3, int(cluster.now_s // 2))
            return False

    def alive() -> None:
        nonlocal beats
        beats += 1

    slots.wait(Stop(), alive)
    assert cluster.executors == 3 and cluster.now_s >= 6.0 + SETTLED_S and beats > 10


def test_more_slots_are_used_when_they_stay_and_fewer_are_borne() -> None:
    cluster = Cluster(2, 2)
    slots = cluster.slots()
    assert slots.plan() == 2
    cluster.cores = 3
    assert not slots.has_grown()
    cluster.now_s += MORE_S - 0.1
    assert not slots.has_grown()
    cluster.cores = 2
    assert not slots.has_grown()
    cluster.cores, cluster.now_s = 3, cluster.now_s + 1.0
    assert not slots.has_grown()
    cluster.now_s += MORE_S
    assert slots.has_grown()
    assert slots.plan() == 3 and not slots.has_grown()
    cluster.cores = 2
    assert not slots.has_grown()


def test_one_slot_is_planned_for_as_one() -> None:
    cluster = Cluster(1, 1)
    slots = cluster.slots()
    assert slots.plan() == 1
    assert slots.figures() == {"cores": 1, "executors": 1}
    cluster.cores = 2
    assert not slots.has_grown()
    cluster.now_s += MORE_S
    assert slots.has_grown() and slots.plan() == 2
    cluster.cores = 0
    assert slots.plan() == 1


def test_the_application_is_restarted_after_a_long_time_without_executors() -> None:
    """A master that came back without its state ends executors that it does not know, and says nothing."""
    cluster = Cluster(1, 2)
    slots = cluster.slots()
    slots.plan()
    cluster.executors, cluster.now_s = 0, LOST_S - 1.0
    assert not slots.has_grown()
    cluster.executors = 1
    assert not slots.has_grown()
    cluster.executors, cluster.now_s = 0, cluster.now_s + LOST_S + 0.1
    with pytest.raises(NoExecutorsError, match="no executor for 10 s"):
        slots.has_grown()
    yarn = Cluster(1, 2, "yarn")  # which starts another by itself, in its time
    slots = yarn.slots()
    yarn.executors, yarn.now_s = 0, LOST_ELSEWHERE_S - 1.0
    assert not slots.has_grown()
    yarn.now_s = LOST_ELSEWHERE_S + 0.1
    with pytest.raises(NoExecutorsError, match="no executor for 120 s"):
        slots.has_grown()


def test_blocks_that_a_task_gives_back_are_written_as_it_would_have(tmp_path: Path) -> None:
    held = BlockCollector()
    counts, numbers = np.array([2, 1], np.int32), np.array([7, 7], np.uint32)
    block = NewMatchBlock.by_event(5, 7, counts, np.array([0, 1, 1, 2]), numbers)
    assert held.write(block) == 0
    held.fill(7, 7)
    held.fill(7, 40)
    log = open_match_log(tmp_path.as_uri()).partition(0)
    pickle.loads(pickle.dumps(held)).write_to(log)
    assert log.end(5) == 40
    found = log.block_at(5)
    assert found is not None and [each.tolist() for each in found.matches_of(7)] == [[5, 6], [0, 0]]


def test_a_group_of_processes_gets_no_more_than_its_share() -> None:
    if (reason := why_no_groups()) is not None:
        pytest.skip(reason)
    group = CpuGroup(0.2)
    try:
        busy = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
        subprocess.run([sys.executable, "-S", "-c", busy], preexec_fn=group.join, check=True)
        assert 0.01 < group.used_s() < 0.5
        idle = subprocess.Popen([sys.executable, "-c", "input()"], preexec_fn=group.join)
        group.kill()
        assert idle.wait(60) < 0 and group.processes() == []
    finally:
        group.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--master", "local[2]"], "the cluster's address is spark://HOST:PORT"),
        (["--spark-properties", "missing.conf"], "error: missing.conf: No such file or directory"),
        (["--spark-properties", "latin.conf"], "error: latin.conf is not UTF-8"),
        (["--spark-properties", "wrong.conf"], "wrong.conf, line 1: expected a Spark property"),
        (["--index-store", "s3://key:hushed@bucket/x"], "without a password"),
        (["--index-store", "relative/folder"], "file:///PATH"),
    ],
)
def test_serve_reports_invalid_cluster_settings_at_once(
    tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "wrong.conf").write_text("spark.cores.max\n")
    (tmp_path / "latin.conf").write_bytes(b"# caf\xe9\n")
    program = [sys.executable, "-c", "from fieldfare.cli import main; main()", "serve", "--port", "0"]
    done = subprocess.run([*program, *options], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1 and said in text and "hushed" not in text and "Traceback" not in text
