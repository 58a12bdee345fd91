"""Batches of the streaming query: their bounds, and the offsets that name their ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fieldfare.model import Offsets
from fieldfare.storage import EventReader
from fieldfare.storage.event_log import ends_of

BOUNDS_TASKS = 2
"""Maximum tasks with which a batch is bounded by its settings; more tasks allow larger batches."""

Offset = dict[str, Any]
"""The end of a batch, as Spark keeps it: ``ends`` by partition, and its ``manifest``."""


@dataclass(frozen=True, slots=True)
class MicroBatchSettings:
    """How batches are cut.

    Attributes
    ----------
    max_bytes, max_events : int
        Maximum size of a batch (but always at least one record). Larger: a backlog is processed in fewer,
        larger batches, which costs less; new events wait longer meanwhile, and more memory is used.
    wait_ms : int
        How long the source waits for an event before it tells Spark that there is none, in milliseconds.
        Longer: an idle service uses less CPU; stopping the query may take this long.
    poll_ms : float
        Polling interval in milliseconds, if the log allows it (`EventReader.look_every_s`). Longer: less CPU,
        and half of the interval as additional latency on average.
    split_bytes : int
        A batch larger than this is matched by `tasks` tasks, a smaller one by a single task.
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

    def as_options(self) -> dict[str, str]:
        """Return the settings as options of a Spark source, which are strings."""
        return {name: str(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> MicroBatchSettings:
        defaults = cls()
        return cls(
            **{
                name: type(getattr(defaults, name))(options[name])
                for name in cls.__slots__
                if options.get(name) is not None
            }
        )


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
