"""Batches that the driver plans itself: a query whose matchers' tasks have preferred locations.

Spark's streaming sources written in Python cannot state preferred locations, nor can a shuffle's readers. So
an elastic service's batches are jobs of the driver's own, one after the other, planned by the same
`BatchPlanner` as a query's; progress is read from the match log as usual.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from itertools import chain
from typing import Any

from pyspark.sql import SparkSession

from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import MicroBatchSettings, Offset
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.distributed.learning import Learner, work_of
from fieldfare.runtimes.spark.distributed.tasks import Spread
from fieldfare.runtimes.spark.elastic.control import ElasticControl, ElasticSettings
from fieldfare.runtimes.spark.elastic.pinned import PinnedMatching, PinnedTask
from fieldfare.runtimes.spark.query import reason
from fieldfare.runtimes.spark.range_task import RecordRange
from fieldfare.storage.folder import DataFolder

GROUP = "fieldfare-batches"
END_WAIT_S = 10.0

_log = logging.getLogger("fieldfare.pipeline")


class PinnedQuery:
    """Matches a service's log like the streaming query of ``query.start_query``; starts immediately.

    It has the methods of a `StreamingQuery` that the driver uses.
    """

    def __init__(
        self,
        session: SparkSession,
        folder: DataFolder,
        settings: MicroBatchSettings,
        elastic: ElasticSettings,
        learner: Learner,
        forwarding: str = "adaptive",
    ) -> None:
        self._session = session
        self._folder = folder
        self._tasks_folder = tasks_folder(session, replace(folder, root=folder.root.resolve()))
        self._planner = BatchPlanner(folder, settings)
        self._spread = Spread(settings.matchers, settings.tasks, forwarding)
        self._learner = learner
        self.control = ElasticControl(session, folder, elastic, settings.matchers)
        self._tasks: list[PinnedTask] = []
        self._matching: PinnedMatching | None = None
        self._batch = 0
        self._message = "Initializing"
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fieldfare-batches", daemon=True)
        self.control.start()
        self._thread.start()

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive() and self._error is None

    @property
    def status(self) -> dict[str, Any]:
        return {"message": self._message}

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return {"batchId": self._batch} if self._batch else None

    def exception(self) -> BaseException | None:
        return self._error

    def stop(self) -> None:
        """Stop; the current batch is cancelled, and waited for at most `END_WAIT_S` seconds."""
        self._stop.set()
        self._session.sparkContext.cancelJobGroup(GROUP)
        self._thread.join(END_WAIT_S)
        self.control.close()

    def _run(self) -> None:
        try:
            self._session.sparkContext.setJobGroup(GROUP, "a batch", interruptOnCancel=False)
            self._run_batches()
        except BaseException as error:
            if not self._stop.is_set():
                self._error = error
        finally:
            self._planner.close()
            self.control.close()

    def _run_batches(self) -> None:
        start: Offset = {"ends": self._planner.first(), "manifest": 0}
        while not self._stop.is_set():
            self._message = "Waiting for data to arrive"
            end = self._planner.next_end(start)
            if end["ends"] == start["ends"]:
                continue
            self._message = "Processing new data"
            self._match(start, end)
            self._batch += 1
            start = end

    def _match(self, start: Offset, end: Offset) -> None:
        manifest, routing = end["manifest"], self._planner.routing(end["manifest"])
        pieces = self._planner.tasks(start["ends"], end["ends"])
        ranges = [RecordRange(*each, manifest, routing) for piece in pieces for each in piece]
        started_s = time.monotonic()
        tasks = self.control.tasks()
        if self._matching is None or tasks != self._tasks:
            self._tasks = tasks
            self._matching = PinnedMatching(self._session, self._tasks_folder, self._spread, tasks)
        # Each matcher reads all ranges; as many tasks write as would read without placement.
        summaries = self._matching.match(ranges, len(pieces))
        work = work_of(chain.from_iterable(summary["work"] for summary in summaries))
        ended_s = time.monotonic()
        self.control.worked(manifest, tasks, work, ended_s - started_s)
        try:
            self._learner.learn(manifest, work, started_s, ended_s)
        except Exception as error:
            _log.warning("the matchers' measurements could not be used: %s", reason(error))
