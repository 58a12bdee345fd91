"""Matchers in tasks that say where they would like to run: one stage that reads the log, and one that writes.

    (ranges, matchers) at an executor ─▶ MatchPlaced (AP and M) ─by range─▶ WriteBlocks (EP) ─▶ a row a block

A shuffle's reading tasks run anywhere, and a streaming source's, too; only rows of the driver's own can say
where they would like to be. So each matcher reads the records itself, which every one of E-StreamHub's gets
anyway, and keeps what AP would send it. Where a task really runs changes nothing of what it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from fieldfare.runtimes.spark.range_task import SUMMARY, RecordRange
from fieldfare.runtimes.spark.source import RANGES
from fieldfare.runtimes.spark.spread.tasks import (
    FINDINGS,
    Dispatch,
    MatchConsignments,
    Spread,
    WriteBlocks,
    executor_here,
    open_matchers,
)
from fieldfare.storage.folder import DataFolder

_WHERE = pa.schema([pa.field("executor", pa.string())])


class PlacedTask(msgspec.Struct, frozen=True):
    """What one task is to do: for which matchers, with which ranges of the log.

    `location` is where it would best run, as Spark knows it; None: anywhere.
    """

    matchers: tuple[int, ...]
    ranges: tuple[RecordRange, ...] = ()
    location: str | None = None


def match_placed(
    session: SparkSession, folder: DataFolder, spread: Spread, tasks: Sequence[PlacedTask]
) -> list[dict[str, Any]]:
    """Match ranges of the log: the tasks write its match log, and give rows of ``SUMMARY``.

    Parameters
    ----------
    tasks
        All with the same ranges, and each matcher in one of them.
    """
    found = _rows_at(session, tasks).mapInArrow(MatchPlaced(folder, spread), from_arrow_schema(FINDINGS))
    writing = found.repartitionById(spread.exits, "exit")
    written = writing.mapInArrow(WriteBlocks(folder), from_arrow_schema(SUMMARY))
    return [row.asDict(recursive=True) for row in written.collect()]


def open_placed(
    session: SparkSession, folder: DataFolder, manifest: int, matchers: int, tasks: Sequence[PlacedTask]
) -> list[str]:
    """Have slices fetched and mapped where the tasks ask to run, with Python's processes; where they did."""
    work = OpenPlaced(folder, manifest, matchers)
    opened = _rows_at(session, tasks).mapInArrow(work, from_arrow_schema(_WHERE))
    return [str(row["executor"]) for row in opened.collect()]


def _rows_at(session: SparkSession, tasks: Sequence[PlacedTask]) -> DataFrame:
    """A row for each task in a partition of its own, which says where it would like to be."""
    jvm: Any = session._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    rows = jvm.java.util.ArrayList()
    for task in tasks:
        where = jvm.java.util.ArrayList()
        if task.location is not None:
            where.add(task.location)
        rows.add(jvm.scala.Tuple2(msgspec.json.encode(task).decode(), to_seq(where)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.String"))
    placed = session.sparkContext._jsc.sc().makeRDD(to_seq(rows), tag)
    strings: Any = jvm.org.apache.spark.sql.Encoders.STRING()
    return DataFrame(session._jsparkSession.createDataset(placed, strings).toDF(), session)


def _tasks_of(batches: Iterator[pa.RecordBatch]) -> Iterator[PlacedTask]:
    for batch in batches:
        for text in batch.column(0).to_pylist():
            yield msgspec.json.decode(text, type=PlacedTask)


@dataclass(frozen=True, slots=True)
class MatchPlaced:
    """AP and M of some matchers: ranges of the log in, and what they match there out."""

    folder: DataFolder
    spread: Spread

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in _tasks_of(batches):
            ranges = pa.RecordBatch.from_pylist([asdict(each) for each in task.ranges], RANGES)
            read = Dispatch(self.folder, self.spread, frozenset(task.matchers))
            yield from MatchConsignments(self.folder)(read(iter([ranges])))


@dataclass(frozen=True, slots=True)
class OpenPlaced:
    """As ``spread.tasks.OpenSlices``, of some matchers of so many only; manifest 0 is none."""

    folder: DataFolder
    manifest: int
    matchers: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in _tasks_of(batches):
            if self.manifest:
                open_matchers(self.folder, self.manifest, frozenset(task.matchers), self.matchers)
            yield pa.RecordBatch.from_pylist([{"executor": executor_here()}], _WHERE)
