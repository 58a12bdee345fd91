"""Workers write no log lines of their own, because Spark's reader fails after very many of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

TASKS = 6_000
WAIT_S = 240.0


def test_a_task_writes_nothing_that_spark_would_have_to_read(session: SparkSession) -> None:
    """Each wrote a line at its end; the reader of these called itself for each, and overflowed."""

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import sys

        for _ in batches:
            kind, named = type(sys.stdout).__name__, os.environ.get("PYSPARK_SPARK_SESSION_UUID", "")
            yield pa.RecordBatch.from_pylist([{"kind": kind, "session": named}])

    found = session.range(0, 1, numPartitions=1).mapInArrow(where, "kind string, session string").collect()
    assert [(row.kind, row.session) for row in found] == [("TextIOWrapper", "")]


@pytest.mark.slow
def test_very_many_tasks_run_in_the_same_workers(session: SparkSession) -> None:
    """They stood still after 3,577: minutes of a service that always has something to match."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    rows = session.range(0, TASKS, numPartitions=TASKS).mapInArrow(same, "id long")
    late = threading.Timer(WAIT_S, session.sparkContext.cancelAllJobs)
    late.start()
    try:
        rows.write.format("noop").mode("overwrite").save()
    finally:
        late.cancel()
