"""A service on a Spark cluster of its own, as its tests need it: fed all the time, asked what came."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import kafka_rig
import pytest
from service_support import Api, RunningService, until

from fieldfare_lab.feeding import Feed, Reader
from fieldfare_lab.hadoop import HdfsCluster, YarnCluster, why_no_hadoop
from fieldfare_lab.spark_cluster import SparkCluster, why_no_cluster

START_S = 420.0
SUBSCRIPTIONS = {"all": "data.n >= 0", "third": "data.n % 3 = 1", "none": "data.n < 0"}


class ClusterScene:
    """Broker, cluster and service; a feed, and a reader of everything. All ends with the context.

    Parameters
    ----------
    folder
        Where the data directory, and the folder that machines share, are made.
    on_kafka
        Whether workers get nothing of the service's machine: logs in Kafka, the index in the shared folder.
    workers, cpu_limit
        Of the cluster.
    on_hadoop
        Whether YARN gives the executors, and the index is in HDFS: no standalone cluster, no shared folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        on_kafka: bool,
        workers: int = 3,
        cpu_limit: float | None = None,
        on_hadoop: bool = False,
    ) -> None:
        if (reason := why_no_cluster() or (why_no_hadoop() if on_hadoop else None)) is not None:
            pytest.skip(reason)
        self._stack = ExitStack()
        self.folder = folder
        self.yarn: YarnCluster | None = None
        with ExitStack() as stack:
            settings: dict[str, Any] = {}
            if on_kafka:
                self.broker = stack.enter_context(kafka_rig.own_broker())
                settings["log"] = f"kafka://{self.broker.address}/events?partitions=2"
                settings["index_store"] = (folder / "shared").as_uri()
            if on_hadoop:
                settings |= self._begin_hadoop(stack)
            else:
                self.cluster = stack.enter_context(SparkCluster(workers, cpu_limit=cpu_limit))
                settings["master"] = self.cluster.address
            self.service = RunningService(folder / "data", **settings)
            stack.callback(self._stop)
            # Each worker fetches an archive and unpacks 400 MB, on a machine that others use, too.
            try:
                self.service.wait_ready(START_S)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.logs()}") from None
            self.api = Api(self.service.url)
            self._stack = stack.pop_all()

    def _begin_hadoop(self, stack: ExitStack) -> dict[str, Any]:
        """Start Hadoop; return the service's settings for it."""
        self.hdfs = stack.enter_context(HdfsCluster())
        self.yarn = stack.enter_context(YarnCluster(self.hdfs.address))
        properties = self.folder / "spark.properties"
        told = self.yarn.properties | {"spark.driver.host": "127.0.0.1"}
        properties.write_text("".join(f"{name} {value}\n" for name, value in told.items()))
        return {
            "master": self.yarn.address,
            "spark_properties": properties,
            "index_store": f"{self.hdfs.address}/fieldfare",
            "environment": self.yarn.environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
        }

    def _stop(self) -> None:
        if self.service.process.poll() is None:
            self.service.process.terminate()
            self.service.process.wait(60)

    def begin(self, pause_s: float = 0.02) -> None:
        """Subscribe, and let events come."""
        self.api.put_all("default", SUBSCRIPTIONS)
        self.feed, self.reader = Feed(self.service.url, pause_s), Reader(self.service.url, "all")
        self.feed.start()
        self.reader.start()

    def flows(self, messages: int = 50, deadline_s: float = 180.0) -> None:
        """Wait until `messages` more messages arrived, of events that were published from now on."""
        published = max(self.feed.stands.values(), default=0)

        def came() -> bool:
            fresh = sum(each[0][0] > published for each in list(self.reader.came.values()))
            return fresh >= messages and self.feed.is_alive()

        until(came, deadline_s, self.logs())

    def check(self) -> int:
        """End the feed; every event came to whom it matches, as it was, and once; how many there were."""
        stands = self.feed.stop()
        until(lambda: len(self.reader.came) >= len(stands), why=self.logs())
        self.reader.stop()
        assert {place: came[0][0] for place, came in self.reader.came.items()} == stands
        assert all(len(came) == 1 for came in self.reader.came.values())
        third = {place: n for place, n in stands.items() if n % 3 == 1}
        other = Reader(self.service.url, "third")
        other.start()
        until(lambda: len(other.came) >= len(third), why=self.logs())
        other.stop()
        assert {place: [n for n, _ in came] for place, came in other.came.items()} == {
            place: [n] for place, n in third.items()
        }
        nothing = self.api.http.post("/v1/spaces/default/subscriptions/none/pull", json={"wait_s": 0})
        assert nothing.json()["messages"] == []
        return len(stands)

    def logs(self) -> str:
        """Return the logs of the service and its executors, for error messages."""
        paths = [self.service.folder.log_of("pipeline"), self.service.folder.spark_log]
        for worker in self.cluster.workers if self.yarn is None else ():
            paths += (worker.folder / "work").glob("app-*/*/stderr")
        said = [f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in paths if path.exists()]
        return "\n".join(
            [self.service.console, *said, *([self.yarn.logs()] if self.yarn is not None else ())]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
