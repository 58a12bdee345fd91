"""Java retains almost nothing of finished jobs, because a service runs batches without end."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import SparkSession

JOBS = 60
KEPT_MAX = 30
WAIT_S = 180.0


def test_of_jobs_that_have_ended_few_are_kept(session: SparkSession) -> None:
    """A thousand were, so each lived long enough to grow old, and Java's heap grew with them."""
    spark: Any = session.sparkContext._jsc.sc()
    for _ in range(JOBS):
        session.range(0, 1, numPartitions=1).write.format("noop").mode("overwrite").save()

    def kept() -> list[int]:
        store, queries = spark.statusStore().store(), session._jsparkSession.sharedState().statusStore()
        kinds = ("JobDataWrapper", "StageDataWrapper")
        names = [f"org.apache.spark.status.{kind}" for kind in kinds]
        found = spark.getClass().getClassLoader()
        return [*(store.count(found.loadClass(name)) for name in names), queries.executionsCount()]

    give_up_s = time.monotonic() + WAIT_S
    while max(kept()) > KEPT_MAX and time.monotonic() < give_up_s:
        time.sleep(0.05)
    assert max(kept()) <= KEPT_MAX
