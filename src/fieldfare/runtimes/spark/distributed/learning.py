"""The driver's side of forwarding: it learns from what matchers did in a batch, and informs the planner."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from fieldfare.runtimes.spark.distributed.loads import MatcherWork, MeasuredLoads
from fieldfare.runtimes.spark.failures import reason
from fieldfare.storage import open_index_store
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.folder import DataFolder

_log = logging.getLogger("fieldfare.pipeline")


def work_of(summaries: Iterable[Mapping[str, Any]]) -> list[MatcherWork]:
    """Return the work in rows of ``SUMMARY``."""
    rows = chain.from_iterable(summary["work"] for summary in summaries)
    return [MatcherWork(*(row[name] for name in MatcherWork._fields)) for row in rows]


class Learner:
    """Learns from the batches of a service with several matchers; see `loads`."""

    def __init__(self, folder: DataFolder) -> None:
        self._path = folder.slices
        self._store = open_index_store(folder.index_url)
        self._measured = MeasuredLoads()
        self._lock = threading.Lock()
        self._ended_s = 0.0

    def learn(
        self, number: int, summaries: Iterable[Mapping[str, Any]], started_s: float, ended_s: float
    ) -> None:
        """Learn from a batch that was matched with the manifest of this number; a failure is only logged.

        Parameters
        ----------
        summaries : iterable of mappings
            Rows of ``SUMMARY``.
        """
        try:
            work = work_of(summaries)
            with self._lock:
                # Of two batches under way, the matchers work on the second when they have done the first.
                started_s, self._ended_s = max(started_s, self._ended_s), max(ended_s, self._ended_s)
                # A removed manifest has successors: the next batch is learned from again.
                with suppress(IndexStoreError):
                    self._measured.learn(self._store.manifest(number), work, started_s, self._ended_s)
                self._measured.save(self._path, number)
        except Exception as error:
            _log.warning("the matchers' measurements could not be used: %s", reason(error))
