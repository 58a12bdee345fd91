"""The executors of a standalone cluster: which there are, how many there shall be, which are given back."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import SparkSession

ELASTIC_CONFIG = {
    # Who is given back ends when its last task has.
    "spark.decommission.enabled": "true",
    # A matcher's task waits so long for the executor that has its slices mapped, if that is at work.
    "spark.locality.wait.process": "500ms",
}
"""What a session needs besides, whose executors come and go."""


class Executor(NamedTuple):
    """One of them. `location` is what a task says that would like to run there."""

    id: str
    location: str
    cores: int


class Executors:
    """The executors of a session's application, besides its driver."""

    def __init__(self, session: SparkSession) -> None:
        self._jvm: Any = session._jvm
        self._context: Any = session.sparkContext._jsc.sc()
        self._known: dict[str, Executor] = {}

    def seen(self) -> dict[str, Executor]:
        """Those that there are now, without any that is on its way out, the oldest first."""
        backend = self._context.schedulerBackend()
        ids = self._texts(backend.getExecutorIds())
        leaving = set(self._texts(backend.executorsPendingDecommission().keys().toSeq()))
        if set(ids) - self._known.keys():
            self._look()
        present = [each for each in ids if each in self._known and each not in leaving]
        self._known = {each: self._known[each] for each in ids if each in self._known}
        return {each: self._known[each] for each in sorted(present, key=lambda id: (len(id), id))}

    def request(self, count: int) -> None:
        """There shall be so many."""
        no_hosts = self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(self._jvm.java.util.HashMap())
        self._context.requestTotalExecutors(count, 0, no_hosts)

    def give_back(self, id: str) -> None:
        """Let one end when it is done, without another in its place."""
        info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(
            "not needed", self._jvm.scala.Option.empty()
        )
        self._context.schedulerBackend().decommissionExecutor(id, info, False, False)

    def _look(self) -> None:
        for each in self._list(self._context.statusStore().executorList(True)):
            if each.id() != "driver":
                host = each.hostPort().rpartition(":")[0]
                self._known[each.id()] = Executor(
                    each.id(), f"executor_{host}_{each.id()}", each.totalCores()
                )

    def _texts(self, sequence: Any) -> list[str]:
        return [str(each) for each in self._list(sequence)]

    def _list(self, sequence: Any) -> list[Any]:
        return list(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(sequence))
