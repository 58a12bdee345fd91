"""Matchers in tasks with preferred locations: one stage that reads the log, and one that writes.

    matchers at an executor ─▶ MatchPlaced (AP and M) ─by range─▶ WritePlaced (EP) ─▶ a row a block

A shuffle's reading tasks run anywhere; only rows of the driver's own can have
preferred locations. So each matcher reads the records itself (in E-StreamHub each one gets them anyway) and
keeps what AP would send it. Where a task really runs does not affect its result.

A batch is a job of the driver's, and the fixed cost of a job delays its events. So these are plain RDDs of
whole buffers: a DataFrame is analysed, planned and explained for each batch, and its rows are split on their
way. They are reused from batch to batch as long as slices stay where they are: each object that this process
creates in Java costs half a millisecond. The batch itself is passed as a property of its job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import RDD, SparkContext
from pyspark.core.rdd import _wrap_function
from pyspark.serializers import CPickleSerializer, NoOpSerializer, pack_long

from fieldfare.runtimes.spark.distributed.tasks import (
    FINDINGS,
    Dispatch,
    MatchConsignments,
    Opened,
    PinnedTask,
    Spread,
    WriteBlocks,
    open_matchers,
    pinned_tasks,
    place_tasks,
)
from fieldfare.runtimes.spark.placed_rows import job_property
from fieldfare.runtimes.spark.range_task import RANGES, RecordRange
from fieldfare.storage.folder import DataFolder

BATCH = "fieldfare.batch"


class PinnedBatch(msgspec.Struct, frozen=True):
    """The ranges that a job's tasks match, and the number of writing tasks: JSON in the property `BATCH`."""

    ranges: tuple[RecordRange, ...]
    exits: int


class PinnedMatching:
    """Matches batches in the same tasks, as long as these stay where they are.

    Parameters
    ----------
    tasks
        The tasks; each matcher is in exactly one of them.
    """

    def __init__(
        self, context: SparkContext, folder: DataFolder, spread: Spread, tasks: Sequence[PinnedTask]
    ) -> None:
        jvm: Any = context._jvm
        found: Any = place_tasks(context, tasks).mapPartitions(MatchPinned(folder, spread))
        # Like `RDD.partitionBy`, which batches rows: these are of any size, and are sent one by one.
        found._bypass_serializer = True
        self._found = jvm.PairwiseRDD(found._jrdd.rdd()).asJavaPairRDD()
        self._write = _wrap_function(context, WritePinned(folder), NoOpSerializer(), CPickleSerializer())
        self._context, self._new_partitioner, self._python = context, jvm.PythonPartitioner, jvm.PythonRDD

    def match(self, ranges: Iterable[RecordRange], exits: int) -> list[dict[str, Any]]:
        """Match ranges of the log: `exits` tasks write to its match log, and return rows of ``SUMMARY``."""
        batch = PinnedBatch(tuple(ranges), exits)
        self._context.setLocalProperty(BATCH, msgspec.json.encode(batch).decode())
        # Shuffled again each time: Spark would reuse an existing shuffle's output.
        sent = self._python.valueOfPair(self._found.partitionBy(self._new_partitioner(exits, 0)))
        written = self._python(sent.rdd(), self._write, False, False).asJavaRDD()
        return list(RDD(written, self._context, CPickleSerializer()).collect())


def open_placed(tasks: RDD[str], folder: DataFolder, manifest: int, matchers: int) -> list[Opened]:
    """Fetch and map slices where the tasks run, which starts Python processes; return where they ran."""
    where: list[Opened] = tasks.mapPartitions(OpenPinned(folder, manifest, matchers)).collect()
    return where


@dataclass(frozen=True, slots=True)
class MatchPinned:
    """AP and M of some matchers: yields their matches of a batch, each row after its EP task's number."""

    folder: DataFolder
    spread: Spread

    def __call__(self, rows: Iterable[str]) -> Iterator[bytes]:
        said = job_property(BATCH)
        for task in pinned_tasks(rows):
            yield from self.found(task, msgspec.json.decode(said, type=PinnedBatch))

    def found(self, task: PinnedTask, batch: PinnedBatch) -> Iterator[bytes]:
        """Yield the matches of one task."""
        ranges = pa.RecordBatch.from_pylist([asdict(each) for each in batch.ranges], RANGES)
        spread = replace(self.spread, exits=batch.exits)
        read = Dispatch(self.folder, spread, frozenset(task.matchers))
        for found in MatchConsignments(self.folder)(read(iter([ranges]))):
            yield pack_long(found.column("exit")[0].as_py())
            yield found.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class WritePinned:
    """EP: writes the blocks, from all matchers' findings; a function of a complete partition."""

    folder: DataFolder

    def __call__(self, _task: int, found: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        findings = (pa.ipc.read_record_batch(pa.py_buffer(each), FINDINGS) for each in found)
        for written in WriteBlocks(self.folder)(findings):
            yield from written.to_pylist()


@dataclass(frozen=True, slots=True)
class OpenPinned:
    """Like ``distributed.tasks.OpenSlices``, for some of `matchers` matchers; manifest 0 opens nothing."""

    folder: DataFolder
    manifest: int
    matchers: int

    def __call__(self, rows: Iterable[str]) -> Iterator[Opened]:
        for task in pinned_tasks(rows):
            yield open_matchers(self.folder, self.manifest, frozenset(task.matchers), self.matchers)
