"""The event log as a source of Spark's: it says which records a batch holds, never what is in them.

Spark keeps one Python process per query for the reader below (a stream reader is pickled too, on its way to
the tasks, so it opens nothing before it is asked something). It plans a batch in this order::

    wait for the log's end to move ─▶ bound the batch ─▶ read the registry's revision ─▶ index up to it
                                             │                        │                       │
                               {"offset": end of the batch, "revision": r,            "manifest": m}

A change of a subscription counts for records from the log's end at the change on. So whatever counts for a
record of the batch was in the registry before that record, let alone the end, could be seen, and revision r,
read after the end, includes it. All three go into the offset, which Spark writes ahead of the batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fieldfare.runtimes.spark.folder import DataFolder
from fieldfare.runtimes.spark.index_writer import IndexWriter
from fieldfare.storage import IndexStore, open_event_log, open_registry
from fieldfare.storage.event_log import EventLog

SOURCE_NAME = "fieldfare_log"

RANGES = pa.schema([pa.field(name, pa.int64()) for name in ("start", "end", "revision", "manifest")])
RANGES_SQL = "start long, end long, revision long, manifest long"

Offset = dict[str, int]


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How batches are cut.

    Attributes
    ----------
    max_bytes, max_events : int
        What a batch holds at most (but always one record). More: a backlog is worked off with fewer, larger
        batches, which costs less; what is published meanwhile waits longer, and memory grows.
    wait_ms : int
        How long the source waits for an event before it tells Spark that there is none. More: an idle service
        uses less of the processor; stopping the query may take as long.
    poll_ms : float
        How often it looks. More: less of the processor, and on average half of it later.
    split_bytes : int
        A batch of more than this is matched by `tasks` tasks, a smaller one by one.
    tasks : int
        How many tasks a large batch is split into: as many as there are cores.
    """

    max_bytes: int = 32 << 20
    max_events: int = 200_000
    wait_ms: int = 200
    poll_ms: float = 2.0
    split_bytes: int = 512 << 10
    tasks: int = 1

    def as_options(self) -> dict[str, str]:
        """As options of a Spark source, which are texts."""
        return {name: str(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> BatchSettings:
        defaults = cls()
        return cls(
            **{
                name: type(getattr(defaults, name))(options[name])
                for name in cls.__slots__
                if options.get(name) is not None
            }
        )


class LogSource(DataSource):
    """The data source that Spark knows as ``fieldfare_log``; the option ``data`` is the data directory."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._folder = DataFolder(Path(options["data"]))
        self._settings = BatchSettings.from_options(options)

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> str:
        return RANGES_SQL

    def streamReader(self, schema: StructType) -> LogStreamReader:
        return LogStreamReader(self._folder, self._settings)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in the query's own Python process, and hands each task its range."""

    def __init__(self, folder: DataFolder, settings: BatchSettings) -> None:
        self._folder = folder
        self._settings = settings
        self._planner: BatchPlanner | None = None

    def _plan(self, passed: int | None = None) -> BatchPlanner:
        """The planner, made when Spark first says where the query stands."""
        if self._planner is None:
            self._planner = BatchPlanner(self._folder, self._settings, passed)
        return self._planner

    def initialOffset(self) -> Offset:
        return {"offset": self._plan().log.start(), "revision": 0, "manifest": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self._plan(start["offset"]).next_end(start)

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().stop_at_present_end()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        ranges = self._plan(start["offset"]).ranges(start["offset"], end)
        return [InputPartition((first, last, end["revision"], end["manifest"])) for first, last in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        columns = [pa.array([value], pa.int64()) for value in partition.value]
        yield pa.RecordBatch.from_arrays(columns, schema=RANGES)

    def commit(self, end: Offset) -> None:
        self._plan(end["offset"]).passed(end)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()


class BatchPlanner:
    """Decides where batches end and brings the index up to date before each."""

    def __init__(self, folder: DataFolder, settings: BatchSettings, passed: int | None = None) -> None:
        self._settings = settings
        self._end_at: int | None = None
        self.log: EventLog = open_event_log(folder.log_url)
        self._registry = open_registry(folder.registry_url)
        start = self.log.start() if passed is None else passed
        self._writer = IndexWriter(folder, self._registry, IndexStore(folder.index), start)

    def next_end(self, start: Offset) -> Offset:
        """Where the next batch ends; `start` itself when no event came for a while.

        Spark asks only when all batches before are committed, so nothing before `start` is needed again.
        """
        self.passed(start)
        if not self._wait_for_events(start["offset"]):
            return start
        end = self.log.bound(start["offset"], self._settings.max_bytes, self._settings.max_events)
        if self._end_at is not None:
            end = min(end, self._end_at)
        revision = self._registry.revision()
        manifest = self._writer.catch_up(revision)
        return {"offset": end, "revision": revision, "manifest": manifest.number}

    def _wait_for_events(self, start: int) -> bool:
        if self._end_at is not None:
            return start < self._end_at
        if self.log.end() > start:
            return True
        until_s = time.monotonic() + self._settings.wait_ms / 1000
        while time.monotonic() < until_s:
            # The index is kept up to date while there is time, so that a batch need not wait for it.
            self._writer.work_ahead()
            if self.log.end() > start:
                return True
            time.sleep(self._settings.poll_ms / 1000)
        return False

    def stop_at_present_end(self) -> None:
        """Plan no batch beyond the log's end as it is now."""
        self._end_at = self.log.end()

    def ranges(self, start: int, planned: Offset) -> list[tuple[int, int]]:
        """Split a batch into the ranges of its tasks, of about the same bytes each."""
        end = planned["offset"]
        if start >= end:
            return []
        self._writer.cover(planned["manifest"], planned["revision"])
        sizes: list[int] = []
        for record in self.log.sizes(start):
            if record.offset >= end:
                break
            sizes.append(record.size_bytes)
        return split_evenly(start, sizes, self._settings.tasks, self._settings.split_bytes)

    def passed(self, end: Offset) -> None:
        """Spark has committed everything before this offset."""
        self._writer.passed(end["offset"], end["manifest"])

    def close(self) -> None:
        self._writer.close()
        self._registry.close()
        self.log.close()


def split_evenly(start: int, sizes: Sequence[int], tasks: int, split_bytes: int) -> list[tuple[int, int]]:
    """Cut records, given by their sizes, into at most `tasks` ranges of about equal bytes.

    Examples
    --------
    >>> split_evenly(10, [5, 5, 5, 5], tasks=2, split_bytes=8)
    [(10, 12), (12, 14)]
    """
    total = sum(sizes)
    if total <= split_bytes or tasks == 1:
        return [(start, start + len(sizes))]
    ranges: list[tuple[int, int]] = []
    first, done = start, 0
    for place, size in enumerate(sizes, start + 1):
        done += size
        if done * tasks >= total * (len(ranges) + 1):
            ranges.append((first, place))
            first = place
    return ranges


def register_source(session: SparkSession) -> None:
    """Make the source known to a session; it must be done before a query uses it."""
    session.dataSource.register(LogSource)
