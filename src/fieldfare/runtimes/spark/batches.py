"""What a batch of the streaming query is: how it is cut, and what names its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fieldfare.model import Offsets
from fieldfare.storage import EventReader
from fieldfare.storage.event_log import ends_of

BOUNDS_TASKS = 2
"""For so many tasks, or fewer, a batch holds at most what its settings say."""

Offset = dict[str, Any]
"""Where a batch ends, as Spark keeps it: ``ends`` by partition, and its ``manifest``."""


@dataclass(frozen=True, slots=True)
class MicroBatchSettings:
    """How batches are cut.

    Attributes
    ----------
    max_bytes, max_events : int
        What a batch holds at most (but always one record). More: a backlog is worked off with fewer, larger
        batches, which costs less; what is published meanwhile waits longer, and memory grows.
    wait_ms : int
        How long the source waits for an event before it tells Spark that there is none. More: an idle service
        uses less of the processor; stopping the query may take as long.
    poll_ms : float
        How often it looks, if the log allows it (`EventReader.look_every_s`). More: less of the processor,
        and on average half of it later.
    split_bytes : int
        A batch of more than this is matched by `tasks` tasks, a smaller one by one.
    tasks : int
        How many tasks a large batch is split into: as many as there are cores. For each beyond `BOUNDS_TASKS`
        a batch may hold more, so that it takes as long: planning one costs the same, whatever it holds.
    matchers : int
        At how many matchers it is matched: with several, its ranges say how events go there.
    """

    max_bytes: int = 32 << 20
    max_events: int = 200_000
    wait_ms: int = 200
    poll_ms: float = 2.0
    split_bytes: int = 512 << 10
    tasks: int = 1
    matchers: int = 1

    def as_options(self) -> dict[str, str]:
        """As options of a Spark source, which are texts."""
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
    """Where a batch ends that begins at `starts`: its bounds are shared by the partitions that have records.

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
