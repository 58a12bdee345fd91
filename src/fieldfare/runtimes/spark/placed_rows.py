"""Rows of the driver, each in a partition with a preferred executor, and what the driver says to tasks.

A shuffle's partitions have no preferred executors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark import RDD, TaskContext
from pyspark.serializers import UTF8Deserializer


def job_property(name: str) -> str:
    """Return a property of the job of this task, with which the driver says what its tasks do."""
    context = TaskContext.get()
    value: str | None = context.getLocalProperty(name) if context is not None else None
    if value is None:
        raise RuntimeError(f"the job does not say what its tasks do: the property {name} is not set")
    return value


def placed_rows(context: Any, rows: Iterable[tuple[str, str | None]]) -> RDD[str]:
    """Return texts, one in each partition, with the location at which the partition's task should run.

    A location is in Spark's notation (see `elastic.executors.Executor`); None: anywhere. A task must read its
    text: Spark ends a Python process that leaves rows unread, instead of giving it the next task.
    """
    jvm = context._jvm
    to_seq, pair = jvm.org.apache.spark.api.python.PythonUtils.toSeq, jvm.scala.Tuple2
    found = jvm.java.util.ArrayList()
    for text, location in rows:
        where = jvm.java.util.ArrayList()
        if location is not None:
            where.add(location)
        found.add(pair(text, to_seq(where)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.String"))
    placed = context._jsc.sc().makeRDD(to_seq(found), tag)
    return RDD(placed.toJavaRDD(), context, UTF8Deserializer())
