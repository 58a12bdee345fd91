"""Tasks that follow the log, alone or several that share it, and the next ones, which stand by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from fieldfare.runtimes.process.wanted import request_index
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.following import Follower, FollowerLane, TakenStripes
from fieldfare.runtimes.spark.range_task import RangeMatcher

from .steps import Time

SHARED_BY = (1, 1, 2, 3)
"""Numbers of tasks that share the partitions, each as probable."""
SLOW_MATCHES, SLOW_MATCH_S = 0.3, 3.0
"""The share of stripes that take long to match, and the maximum time in seconds."""


def followers(
    random: Random, folder: Any, workers: Sequence[RangeMatcher], settings: MicroBatchSettings
) -> list[Callable[[], object]]:
    """Return following tasks, and the next ones, which stand by while the first follow, and stay longer."""
    partitions = tuple(range(len(workers[0].log.partitions)))
    jobs = [
        FollowerLane(partitions, random.uniform(0.5, 4.0), tasks=random.choice(SHARED_BY)),
        FollowerLane(
            partitions, random.uniform(2.0, 8.0), random.uniform(0.0, 4.0), tasks=random.choice(SHARED_BY)
        ),
    ]
    ends: list[bool] = []

    def follow(worker: RangeMatcher, lane: FollowerLane, taken: TakenStripes) -> None:
        def take(*stripe: int) -> int:
            start = taken.take(*stripe)
            if random.random() < SLOW_MATCHES:
                Time.sleep(random.random() * SLOW_MATCH_S)
            return start

        follower = Follower(worker, settings, partial(request_index, folder.wanted))
        if follower.follow(lane, lambda: not ends, take).is_behind:
            ends.append(True)  # the others are told to end

    tasks = [(lane, taken) for lane in jobs for taken in [TakenStripes()] for _ in range(lane.tasks)]
    return [partial(follow, worker, *task) for worker, task in zip(workers, tasks, strict=False)]
