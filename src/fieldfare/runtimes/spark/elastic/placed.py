"""Matchers in tasks that say where they would like to run: one stage that reads the log, and one that writes.

    matchers at an executor ─▶ MatchPlaced (AP and M) ─by range─▶ WritePlaced (EP) ─▶ a row a block

A shuffle's reading tasks run anywhere, and a streaming source's, too; only rows of the driver's own can say
where they would like to be. So each matcher reads the records itself, which every one of E-StreamHub's gets
anyway, and keeps what AP would send it. Where a task really runs changes nothing of what it does.

A batch is a job of the driver's, and what a job costs beside its work is what its events wait for. So these
are plain RDDs of whole buffers: a DataFrame is analysed, planned and explained for each batch, and its rows
are taken apart on their way. Where slices are changes seldom, so the rows that say it are made but then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import RDD
from pyspark.serializers import NoOpSerializer, UTF8Deserializer, pack_long
from pyspark.sql import SparkSession

from fieldfare.runtimes.spark.range_task import RecordRange
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


class PlacedTask(msgspec.Struct, frozen=True):
    """For which matchers one task works.

    `location` is where it would best run, as Spark knows it; None: anywhere.
    """

    matchers: tuple[int, ...]
    location: str | None = None


def place_tasks(session: SparkSession, tasks: Sequence[PlacedTask]) -> RDD[str]:
    """A row for each task in a partition of its own, which says where it would like to be."""
    context: Any = session.sparkContext
    jvm: Any = session._jvm
    to_seq, pair = jvm.org.apache.spark.api.python.PythonUtils.toSeq, jvm.scala.Tuple2
    rows = jvm.java.util.ArrayList()
    for task in tasks:
        where = jvm.java.util.ArrayList()
        if task.location is not None:
            where.add(task.location)
        rows.add(pair(msgspec.json.encode(task).decode(), to_seq(where)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.String"))
    placed = context._jsc.sc().makeRDD(to_seq(rows), tag)
    return RDD(placed.toJavaRDD(), context, UTF8Deserializer())


def match_placed(
    tasks: RDD[str], folder: DataFolder, spread: Spread, ranges: Iterable[RecordRange]
) -> list[dict[str, Any]]:
    """Match ranges of the log: the tasks write its match log, and give rows of ``SUMMARY``.

    Parameters
    ----------
    tasks
        Of `place_tasks`, with each matcher in one of them.
    """
    context: Any = tasks.context
    found: Any = tasks.mapPartitions(MatchPlaced(folder, spread, tuple(ranges)))
    # As `RDD.partitionBy`, which gathers rows by the dozen: these are of any size, and go one by one.
    found._bypass_serializer = True
    pairs = context._jvm.PairwiseRDD(found._jrdd.rdd()).asJavaPairRDD()
    sent = pairs.partitionBy(context._jvm.PythonPartitioner(spread.exits, 0))
    arrived: RDD[bytes] = RDD(context._jvm.PythonRDD.valueOfPair(sent), context, NoOpSerializer())
    written: list[dict[str, Any]] = arrived.mapPartitions(WritePlaced(folder)).collect()
    return written


def open_placed(tasks: RDD[str], folder: DataFolder, manifest: int, matchers: int) -> list[str]:
    """Have slices fetched and mapped where the tasks ask to run, with Python's processes; where they did."""
    where: list[str] = tasks.mapPartitions(OpenPlaced(folder, manifest, matchers)).collect()
    return where


def _tasks_of(rows: Iterable[str]) -> Iterator[PlacedTask]:
    for text in rows:
        yield msgspec.json.decode(text, type=PlacedTask)


@dataclass(frozen=True, slots=True)
class MatchPlaced:
    """AP and M of some matchers: what they match of ranges of the log; before each row the task of its EP."""

    folder: DataFolder
    spread: Spread
    ranges: tuple[RecordRange, ...]

    def __call__(self, rows: Iterable[str]) -> Iterator[bytes]:
        for task in _tasks_of(rows):
            ranges = pa.RecordBatch.from_pylist([asdict(each) for each in self.ranges], RANGES)
            read = Dispatch(self.folder, self.spread, frozenset(task.matchers))
            for found in MatchConsignments(self.folder)(read(iter([ranges]))):
                yield pack_long(found.column("exit")[0].as_py())
                yield found.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class WritePlaced:
    """EP: writes the blocks that something was found in, by whichever matcher."""

    folder: DataFolder

    def __call__(self, found: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        findings = (pa.ipc.read_record_batch(pa.py_buffer(each), FINDINGS) for each in found)
        for written in WriteBlocks(self.folder)(findings):
            yield from written.to_pylist()


@dataclass(frozen=True, slots=True)
class OpenPlaced:
    """As ``spread.tasks.OpenSlices``, of some matchers of so many only; manifest 0 is none."""

    folder: DataFolder
    manifest: int
    matchers: int

    def __call__(self, rows: Iterable[str]) -> Iterator[str]:
        for task in _tasks_of(rows):
            if self.manifest:
                open_matchers(self.folder, self.manifest, frozenset(task.matchers), self.matchers)
            yield executor_here()
