"""The driver learns from a batch, in the form in which Spark reports it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress
from test_spread_tasks import Scene

from fieldfare.partitioning import HashPartitioning
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.runtimes.spark.distributed.learning import Learner
from fieldfare.runtimes.spark.distributed.loads import MatcherWork, last_loads
from fieldfare.runtimes.spark.query import WORK_METRIC


def progress(batch: int, manifest: int, work: list[list[dict[str, Any]]]) -> StreamingQueryProgress:
    """As a query tells it: the JSON of the Java process, read."""
    rate: dict[str, Any] = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    offset = {"ends": [9], "manifest": manifest}
    source = {
        "description": "log", "startOffset": offset, "endOffset": offset, "latestOffset": offset,
        "numInputRows": 1, **rate,
    }  # fmt: skip
    told = {
        "id": "5f8a5a6e-6c27-4d42-9d52-000000000000", "runId": "5f8a5a6e-6c27-4d42-9d52-000000000001",
        "name": "fieldfare", "timestamp": f"2026-01-01T00:00:{batch:02}.000Z", "batchId": batch,
        "batchDuration": 250, "durationMs": {"triggerExecution": 250}, "numInputRows": len(work),
        "stateOperators": [], "sources": [source], "sink": {"description": "noop", "numOutputRows": -1},
        "observedMetrics": {WORK_METRIC: {WORK_METRIC: work}}, **rate,
    }  # fmt: skip
    return StreamingQueryProgress.fromJson(json.loads(json.dumps(told)))


def test_measurements_of_a_batch_reach_the_planner_of_the_next(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    space = scene.store.manifest(scene.index(HashPartitioning(2))).spaces["mine"]
    number = scene.store.greatest_number()
    learner = Learner(scene.folder)
    query: Any = SimpleNamespace()

    def look(said: StreamingQueryProgress | None) -> tuple[float, ...]:
        query.lastProgress = said
        learner.learn_if_new(query)
        return tuple(load.matches_per_s for load in last_loads("mine", space, scene.folder.slices))

    assert look(None) == (0.0, 0.0)
    done = [MatcherWork(0, "mine", 0, 600, 0.5, 0), MatcherWork(0, "mine", -1, 600, 9.0, 99)]
    batch = progress(1, number, [[each._asdict() for each in done]])
    assert look(batch) == (1200.0, 0.0)
    assert look(batch) == (1200.0, 0.0), "it is seen once"
    assert look(progress(2, number, [])) == (1200.0, 0.0), "an idle query tells of no batch"
    more = [
        [MatcherWork(1, "mine", 1, 300, 0.1, 0)._asdict()],
        [MatcherWork(0, "gone", 0, 1, 1, 0)._asdict()],
    ]
    assert look(progress(3, number, more)) == (1200.0, 3000.0)
    assert look(progress(4, 4711, more)) == (1200.0, 3000.0), "of a manifest that is gone nothing is learnt"
    assert read_beat(scene.folder.slices)["manifest"] == 4711
