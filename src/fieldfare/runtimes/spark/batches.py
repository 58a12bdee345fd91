"""Batches of the log: their bounds, and where they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fieldfare.model import Offsets
from fieldfare.storage import EventReader, LogPartition
from fieldfare.storage.event_log import ends_of

BOUNDS_TASKS = 2
"""Maximum tasks with which a batch is bounded by its settings; more tasks allow larger batches."""

BATCHES_MAX = 3
"""Maximum batches that are matched at a time: tasks of the next one begin while the last tasks of a stage of
the one before end."""
ONE_STAGE_BATCHES_MAX = 2
"""Like `BATCHES_MAX`, for batches of a single stage."""

FOLLOWED_EVENTS_MAX = 8_192
"""Maximum events that a task that follows the log matches at a time."""

Offset = dict[str, Any]
"""The end of a batch: ``ends`` by partition, and its ``manifest``."""


@dataclass(frozen=True, slots=True)
class MicroBatchSettings:
    """How batches are cut.

    Attributes
    ----------
    max_bytes, max_events : int
        Maximum size of a batch (but always at least one record). Larger: a backlog is processed in fewer,
        larger batches, which costs less; new events wait longer meanwhile, and more memory is used.
    wait_ms : int
        How long the driver waits for an event at a time, in milliseconds; stopping it may take this long.
    poll_ms : float
        Polling interval in milliseconds, if the log allows it (`EventReader.look_every_s`). Longer: less CPU,
        and half of the interval as additional latency on average.
    split_bytes : int
        A batch larger than this is matched by `tasks` tasks, a smaller one by a single task. A service is
        behind when more than twice this waits: then it is matched in batches.
    tasks : int
        Number of tasks for a large batch: as many as there are cores. Each one beyond `BOUNDS_TASKS` raises
        the batch's bounds, so that a batch takes as long: planning costs the same, whatever the batch's size.
    matchers : int
        Number of matchers; with several, a batch's ranges say how events are routed to them.
    """

    max_bytes: int = 32 << 20
    max_events: int = 200_000
    wait_ms: int = 200
    poll_ms: float = 2.0
    split_bytes: int = 512 << 10
    tasks: int = 1
    matchers: int = 1


def ends_of_batch(
    log: EventReader, starts: Offsets, settings: MicroBatchSettings, ends: Offsets | None = None
) -> Offsets:
    """Return where a batch ends that begins at `starts`; partitions that have records share its bounds.

    Parameters
    ----------
    ends : Offsets, optional
        The partitions' ends, if they were just read.
    """
    ends = ends_of(log) if ends is None else ends
    parts = BOUNDS_TASKS * max(1, sum(end > start for start, end in zip(starts, ends, strict=True)))
    tasks = max(BOUNDS_TASKS, settings.tasks)
    max_bytes, max_events = (most * tasks // parts for most in (settings.max_bytes, settings.max_events))
    return tuple(
        partition.bound(start, max_bytes, max_events) if end > start else start
        for partition, start, end in zip(log.partitions, starts, ends, strict=True)
    )


def is_behind(
    partition: LogPartition,
    start: int,
    settings: MicroBatchSettings,
    events_max: int = FOLLOWED_EVENTS_MAX,
    tasks: int = 1,
) -> bool:
    """Return whether more waits in a partition from an offset on than the tasks that follow it soon match."""
    end = partition.end()
    for _ in range(2 * tasks):
        if start < end:
            start = followed_to(partition, start, end, settings, events_max)
    return start < end


def followed_to(
    partition: LogPartition,
    start: int,
    end: int,
    settings: MicroBatchSettings,
    events_max: int = FOLLOWED_EVENTS_MAX,
) -> int:
    """Return the end of what a task that follows a partition matches at a time, at most `end`.

    The partition may have grown since `end` was read, by records with stamps that were not read.
    """
    if end - start == 1:  # the usual case
        return end
    return min(end, partition.bound(start, settings.split_bytes, min(events_max, FOLLOWED_EVENTS_MAX)))
