"""The driver's side of forwarding: it learns from what matchers did in a batch, and informs the planner."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import msgspec
from pyspark.sql.streaming import StreamingQuery

from fieldfare.runtimes.spark.distributed.loads import MatcherWork, MeasuredLoads
from fieldfare.runtimes.spark.query import WORK_METRIC, reason
from fieldfare.storage import open_index_store
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.folder import DataFolder

_log = logging.getLogger("fieldfare.pipeline")


def work_of(rows: Iterable[Mapping[str, Any]]) -> list[MatcherWork]:
    """Return rows of ``WORK``, as Spark returns them, as tuples."""
    return [MatcherWork(*(row[name] for name in MatcherWork._fields)) for row in rows]


class Learner:
    """Learns from the batches of a query with several matchers; see `loads`."""

    def __init__(self, folder: DataFolder) -> None:
        self._path = folder.slices
        self._store = open_index_store(folder.index_url)
        self._measured = MeasuredLoads()
        self._seen = ""

    def learn_if_new(self, query: StreamingQuery) -> None:
        """Learn from the last batch if it is new; a failure is only logged."""
        try:
            self._learn_if_new(query)
        except Exception as error:
            _log.warning("the matchers' measurements could not be read: %s", reason(error))

    def _learn_if_new(self, query: StreamingQuery) -> None:
        progress = query.lastProgress
        if progress is None or progress["timestamp"] == self._seen:
            return
        self._seen = progress["timestamp"]
        observed = progress["observedMetrics"].get(WORK_METRIC)
        if observed is None or not progress["numInputRows"]:
            return
        ended_s = time.monotonic()
        started_s = ended_s - progress["durationMs"].get("triggerExecution", 0) / 1000
        number = msgspec.json.decode(progress["sources"][0]["endOffset"])["manifest"]
        # Spark reports the metric as JSON: a struct is an object.
        self.learn(number, work_of(chain.from_iterable(observed[WORK_METRIC])), started_s, ended_s)

    def learn(self, number: int, work: list[MatcherWork], started_s: float, ended_s: float) -> None:
        """Add what matchers did in a batch that was matched with the manifest of this number."""
        # A removed manifest has successors: the next batch is learned from again.
        with suppress(IndexStoreError):
            self._measured.learn(self._store.manifest(number), work, started_s, ended_s)
        self._measured.save(self._path, number)
