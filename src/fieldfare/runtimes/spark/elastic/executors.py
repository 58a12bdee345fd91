"""The executors of a standalone cluster: list them, request a number of them, release single ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark import SparkContext

ELASTIC_CONFIG = {
    # A released executor exits after its last task.
    "spark.decommission.enabled": "true",
    # How long a matcher's task waits for the executor that has its slices mapped, if that is busy.
    "spark.locality.wait.process": "500ms",
}
"""Additional settings of a session whose executors come and go."""


class Executor(NamedTuple):
    """An executor; `location` is the preferred location of tasks that should run there."""

    id: str
    location: str
    cores: int


class Executors:
    """The executors of Spark's application, without its driver."""

    def __init__(self, context: SparkContext) -> None:
        self._jvm: Any = context._jvm
        self._context: Any = context._jsc.sc()
        self._known: dict[str, Executor] = {}

    def seen(self) -> dict[str, Executor]:
        """Return the present executors, without those being decommissioned, oldest first."""
        backend = self._context.schedulerBackend()
        ids = self._texts(backend.getExecutorIds())
        leaving = set(self._texts(backend.executorsPendingDecommission().keys().toSeq()))
        if set(ids) - self._known.keys():
            self._read_executors()
        present = [each for each in ids if each in self._known and each not in leaving]
        self._known = {each: self._known[each] for each in ids if each in self._known}
        return {each: self._known[each] for each in sorted(present, key=lambda id: (len(id), id))}

    def request(self, count: int) -> None:
        """Request a total number of executors."""
        no_hosts = self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(self._jvm.java.util.HashMap())
        self._context.requestTotalExecutors(count, 0, no_hosts)

    def give_back(self, id: str) -> None:
        """Let an executor exit when its tasks are done, without a replacement."""
        info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(
            "not needed", self._jvm.scala.Option.empty()
        )
        self._context.schedulerBackend().decommissionExecutor(id, info, False, False)

    def _read_executors(self) -> None:
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
