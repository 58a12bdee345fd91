"""The service on a real standalone Spark cluster: a master and workers, processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("storage", "scenarios"))

from cluster_rig import ClusterScene
from service_support import until

from fieldfare_lab.cpu_group import why_no_groups

pytestmark = [pytest.mark.service, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

WORKER_GAP_S = 5.0
CPU_LIMIT = 0.5


def test_workers_match_that_have_nothing_but_python_and_spark(tmp_path: Path) -> None:
    """Logs in Kafka, the index in a folder that all share; a subscription's past, too; and a worker dies."""
    with ClusterScene(tmp_path, on_kafka=True, workers=2) as scene:
        scene.begin()
        scene.flows()
        scene.cluster.kill_worker(0)
        scene.flows()
        replay = {"id": "past", "filter": "data.n % 2 = 0", "start": "earliest"}
        scene.api.http.post("/v1/spaces/default/subscriptions", json=replay).raise_for_status()
        events = scene.check()
        found: set[int] = set()

        def read_replay() -> bool:
            url = "/v1/spaces/default/subscriptions/past"
            messages = scene.api.http.post(f"{url}/pull", json={"wait_s": 0.2, "max": 500}).json()["messages"]
            found.update(message["event"]["data"]["n"] for message in messages)
            places = [message["position"] for message in messages]
            if places:
                scene.api.http.post(f"{url}/ack", json={"positions": places}).raise_for_status()
            return len(found) >= events // 2

        until(read_replay, why=scene.logs())
        assert found == set(range(2, events + 1, 2))
        names = {path.name for path in scene.service.folder.root.iterdir()}
        assert "log.db" not in names and (tmp_path / "shared" / "manifests").is_dir()


@pytest.mark.slow
def test_a_log_in_sqlite_is_matched_by_a_cluster_of_this_machine(tmp_path: Path) -> None:
    with ClusterScene(tmp_path, on_kafka=False, workers=2) as scene:
        scene.begin()
        scene.flows()
        scene.cluster.kill_worker(1)
        scene.flows()
        assert scene.check() > 100


@pytest.mark.slow
def test_worker_driver_master_and_broker_may_die_in_mid_stream(tmp_path: Path) -> None:
    """Three workers, limited to half a core each while one dies, where control groups can be made."""
    cores = float(os.cpu_count() or 1)
    with ClusterScene(tmp_path, on_kafka=True, cpu_limit=cores if why_no_groups() is None else None) as scene:
        scene.begin()
        scene.flows(200)
        scene.cluster.limit(CPU_LIMIT)
        killed_s = time.monotonic()
        scene.cluster.kill_worker(0)
        time.sleep(3 * WORKER_GAP_S)
        gap_s = scene.reader.longest_gap_s(killed_s - 1.0, killed_s + 3 * WORKER_GAP_S)
        print(f"gap in delivery when a worker dies: {gap_s:.2f} s")
        assert gap_s <= WORKER_GAP_S, scene.logs()
        scene.cluster.limit(cores)

        def survived(what: str) -> None:
            began_s = time.monotonic()
            scene.flows()
            print(f"messages come after {what}: {time.monotonic() - began_s:.0f} s", flush=True)

        scene.cluster.start_worker(0)
        survived("a worker more")
        scene.cluster.kill_master()
        survived("the master's death")  # what runs needs none
        scene.cluster.start_master()
        survived("its return")
        os.kill(scene.service.driver, signal.SIGKILL)
        survived("the driver's death")
        scene.broker.kill()
        time.sleep(1.0)
        scene.broker.start_again()
        survived("the broker's death")
        os.kill(scene.service.jvm, signal.SIGKILL)
        survived("the death of its Java process")
        assert scene.check() > 500


@pytest.mark.slow
def test_a_worker_that_hangs_holds_nothing_up(tmp_path: Path) -> None:
    """Its machine answers no more, and its connections stay open: what it was given others do, too."""
    with ClusterScene(tmp_path, on_kafka=True, workers=2, cpu_limit=1.0) as scene:
        hung = scene.cluster.workers[0].group
        if hung is None:
            pytest.skip(why_no_groups() or "")
        scene.begin()
        scene.flows(100)
        hung_s = time.monotonic()
        hung.signal(signal.SIGSTOP)
        scene.flows(100)
        gap_s = scene.reader.longest_gap_s(hung_s - 1.0, time.monotonic())
        print(f"gap in delivery when a worker hangs: {gap_s:.2f} s")
        scene.flows(100)
        scene.check()


@pytest.mark.slow
def test_more_workers_that_come_later_are_used(tmp_path: Path) -> None:
    with ClusterScene(tmp_path, on_kafka=True, workers=1) as scene:
        scene.begin()
        scene.flows()
        for _ in range(2):
            scene.cluster.add_worker()
        until(lambda: "there are more cores" in scene.service.folder.log_of("pipeline").read_text())
        scene.flows()
        assert scene.check() > 50


@pytest.mark.slow
def test_yarn_gives_executors_and_others_when_they_die_and_the_index_is_in_hdfs(tmp_path: Path) -> None:
    """A real ResourceManager and NodeManager, NameNode and DataNode; of this environment containers have
    nothing but Spark's jars."""
    with ClusterScene(tmp_path, on_kafka=True, on_hadoop=True) as scene:
        assert scene.yarn is not None
        scene.begin()
        scene.flows()
        executors = scene.yarn.running()
        assert executors
        scene.yarn.kill(max(executors))
        scene.flows()
        until(lambda: scene.yarn.running() - executors, 120, scene.logs())
        scene.hdfs.kill_namenode()
        scene.flows()  # the index does not change
        scene.hdfs.start_namenode()
        os.kill(scene.service.driver, signal.SIGKILL)
        scene.flows()
        assert scene.check() > 100
        assert not (tmp_path / "shared").exists()
