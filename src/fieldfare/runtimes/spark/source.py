"""The event log as a Spark source: it says which records a batch holds, not what is in them.

Spark keeps one Python process per query for the reader below (a stream reader is also pickled for the tasks,
so it opens nothing before its first call). It plans a batch in this order::

    wait for the log's end to move ─▶ bound the batch ─▶ read the log's last stamp ─▶ wait for a manifest
                                             │                                        that covers it
                               {"ends": end of the batch,                                   │
                                "manifest": m} ◀────────────────────────────────────────────┘

The last stamp, read after the end of the batch, covers every stamp in it, and so does manifest m, which the
indexer's process writes. Any other that covers a record's stamp would do as well. Both go into the offset,
which Spark writes ahead of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fieldfare.runtimes.spark.batches import MicroBatchSettings, Offset
from fieldfare.storage.folder import DataFolder

if TYPE_CHECKING:
    from fieldfare.runtimes.spark.batch_planner import BatchPlanner

SOURCE_NAME = "fieldfare_log"

_NUMBERS = ("partition", "start", "end", "manifest")
RANGES = pa.schema([*(pa.field(name, pa.int64()) for name in _NUMBERS), pa.field("routing", pa.string())])
"""Columns of `RecordRange`."""
RANGES_SQL = ", ".join([*(f"{name} long" for name in _NUMBERS), "routing string"])


class LogSource(DataSource):  # type: ignore[misc]
    """The Spark data source ``fieldfare_log``; its option ``data`` is the data directory."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._folder = DataFolder.at(Path(options["data"]))
        self._settings = MicroBatchSettings.from_options(options)

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> str:
        return RANGES_SQL

    def streamReader(self, schema: StructType) -> LogStreamReader:
        return LogStreamReader(self._folder, self._settings)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans batches in the query's own Python process, and assigns ranges to tasks."""

    def __init__(self, folder: DataFolder, settings: MicroBatchSettings) -> None:
        self._folder = folder
        self._settings = settings
        self._planner: BatchPlanner | None = None

    def _plan(self) -> BatchPlanner:
        """Return the planner; created on first use."""
        if self._planner is None:
            # Spark makes a reader in several processes; only the one that plans needs the index and the log.
            from fieldfare.runtimes.spark.batch_planner import BatchPlanner

            self._planner = BatchPlanner(self._folder, self._settings)
        return self._planner

    def initialOffset(self) -> Offset:
        return {"ends": self._plan().first(), "manifest": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self._plan().next_end(start)

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().stop_at_present_end()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        tasks = self._plan().tasks(start["ends"], end["ends"])
        both = end["manifest"], self._plan().routing(end["manifest"])
        return [InputPartition([(*each, *both) for each in ranges]) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        columns = zip(RANGES, zip(*partition.value, strict=True), strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(values, f.type) for f, values in columns], schema=RANGES)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()


def register_source(session: SparkSession) -> None:
    """Register the source in a session; required before a query uses it."""
    session.dataSource.register(LogSource)
