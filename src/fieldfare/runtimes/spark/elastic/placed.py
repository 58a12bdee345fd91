"""Matchers in tasks that say where they would like to run: one stage that reads the log, and one that writes.

    matchers at an executor ─▶ MatchPlaced (AP and M) ─by range─▶ WritePlaced (EP) ─▶ a row a block

A shuffle's reading tasks run anywhere, and a streaming source's, too; only rows of the driver's own can say
where they would like to be. So each matcher reads the records itself, which every one of E-StreamHub's gets
anyway, and keeps what AP would send it. Where a task really runs changes nothing of what it does.

A batch is a job of the driver's, and what a job costs beside its work is what its events wait for. So these
are plain RDDs of whole buffers: a DataFrame is analysed, planned and explained for each batch, and its rows
are taken apart on their way. And they are the same from batch to batch as long as slices stay where they are:
each object that this process has Java make costs it half a millisecond. What a batch is goes as a property of
its job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark import RDD, TaskContext
from pyspark.core.rdd import _wrap_function
from pyspark.serializers import CPickleSerializer, NoOpSerializer, UTF8Deserializer, pack_long
from pyspark.sql import SparkSession

from fieldfare.runtimes.spark.elastic.processors import processors_here
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

BATCH = "fieldfare.batch"


class PlacedBatch(msgspec.Struct, frozen=True):
    """What all tasks of a job have to match, and in how many it is written: JSON in the property `BATCH`."""

    ranges: tuple[RecordRange, ...]
    exits: int


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


class PlacedMatching:
    """Matches batches in the same tasks, as long as these stay where they are.

    Parameters
    ----------
    tasks
        With each matcher in one of them.
    """

    def __init__(
        self, session: SparkSession, folder: DataFolder, spread: Spread, tasks: Sequence[PlacedTask]
    ) -> None:
        context: Any = session.sparkContext
        jvm = context._jvm
        found: Any = place_tasks(session, tasks).mapPartitions(MatchPlaced(folder, spread))
        # As `RDD.partitionBy`, which gathers rows by the dozen: these are of any size, and go one by one.
        found._bypass_serializer = True
        self._found = jvm.PairwiseRDD(found._jrdd.rdd()).asJavaPairRDD()
        self._write = _wrap_function(context, WritePlaced(folder), NoOpSerializer(), CPickleSerializer())
        self._context, self._new_partitioner, self._python = context, jvm.PythonPartitioner, jvm.PythonRDD

    def match(self, ranges: Iterable[RecordRange], exits: int) -> list[dict[str, Any]]:
        """Match ranges of the log: the tasks write its match log, and give rows of ``SUMMARY``.

        So many tasks write it.
        """
        batch = PlacedBatch(tuple(ranges), exits)
        self._context.setLocalProperty(BATCH, msgspec.json.encode(batch).decode())
        # Shuffled anew each time: Spark takes what is shuffled once for done.
        sent = self._python.valueOfPair(self._found.partitionBy(self._new_partitioner(exits, 0)))
        written = self._python(sent.rdd(), self._write, False, False).asJavaRDD()
        return list(RDD(written, self._context, CPickleSerializer()).collect())


class Opened(NamedTuple):
    """Where a task ran that had slices mapped, and how many processors' time there is."""

    executor: str
    processors: float


def open_placed(tasks: RDD[str], folder: DataFolder, manifest: int, matchers: int) -> list[Opened]:
    """Have slices fetched and mapped where the tasks ask to run, with Python's processes; where they did."""
    where: list[Opened] = tasks.mapPartitions(OpenPlaced(folder, manifest, matchers)).collect()
    return where


def _tasks_of(rows: Iterable[str]) -> Iterator[PlacedTask]:
    for text in rows:
        yield msgspec.json.decode(text, type=PlacedTask)


@dataclass(frozen=True, slots=True)
class MatchPlaced:
    """AP and M of some matchers: what they match of a batch; before each row the task of its EP."""

    folder: DataFolder
    spread: Spread

    def __call__(self, rows: Iterable[str]) -> Iterator[bytes]:
        context = TaskContext.get()
        said = context.getLocalProperty(BATCH) if context is not None else None
        if said is None:
            raise RuntimeError("nobody says what this task is to match")
        for task in _tasks_of(rows):
            yield from self.found(task, msgspec.json.decode(said, type=PlacedBatch))

    def found(self, task: PlacedTask, batch: PlacedBatch) -> Iterator[bytes]:
        """What one task finds."""
        ranges = pa.RecordBatch.from_pylist([asdict(each) for each in batch.ranges], RANGES)
        spread = replace(self.spread, exits=batch.exits)
        read = Dispatch(self.folder, spread, frozenset(task.matchers))
        for found in MatchConsignments(self.folder)(read(iter([ranges]))):
            yield pack_long(found.column("exit")[0].as_py())
            yield found.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class WritePlaced:
    """EP: writes the blocks that something was found in, by whichever matcher; a function of a whole task."""

    folder: DataFolder

    def __call__(self, _task: int, found: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        findings = (pa.ipc.read_record_batch(pa.py_buffer(each), FINDINGS) for each in found)
        for written in WriteBlocks(self.folder)(findings):
            yield from written.to_pylist()


@dataclass(frozen=True, slots=True)
class OpenPlaced:
    """As ``spread.tasks.OpenSlices``, of some matchers of so many only; manifest 0 is none."""

    folder: DataFolder
    manifest: int
    matchers: int

    def __call__(self, rows: Iterable[str]) -> Iterator[Opened]:
        for task in _tasks_of(rows):
            if self.manifest:
                open_matchers(self.folder, self.manifest, frozenset(task.matchers), self.matchers)
            yield Opened(executor_here(), processors_here())
