"""How long an event waits: Spark's micro-batches in simulated time, half loaded.

A batch takes the events that came while the one before it ran. Its stages follow one another; the driver
launches the tasks of a stage one by one, each on the next slot that is free. A task takes what its share of
the events costs, times a random factor, and a fixed time. ``calibrate.py`` measures the fixed times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

SPREAD = 0.15
"""Standard deviation of the logarithm of a task's time."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Tasks that share a batch's events; each event costs `event_us` at all of them together."""

    tasks: int
    event_us: float


@dataclass(frozen=True, slots=True)
class Overheads:
    """What does not depend on events, in seconds.

    Attributes
    ----------
    batch_s
        Planning a batch, noting it in the checkpoint.
    launch_s
        The driver, for one task: one after the other.
    task_s
        A task, on its slot.
    """

    batch_s: float
    launch_s: float
    task_s: float


def stage_s(stage: Stage, events: float, slots: int, overheads: Overheads, rng: np.random.Generator) -> float:
    """How long a stage takes."""
    work_s = events * stage.event_us / 1e6 / stage.tasks
    took = overheads.task_s + work_s * np.exp(rng.normal(0.0, SPREAD, stage.tasks))
    free = [0.0] * min(slots, stage.tasks)
    heapify(free)
    last = 0.0
    for number, seconds in enumerate(took.tolist(), 1):
        end = max(free[0], number * overheads.launch_s) + seconds
        heapreplace(free, end)
        last = max(last, end)
    return last


def delays_s(
    stages: Sequence[Stage],
    events_per_s: float,
    slots: int,
    overheads: Overheads,
    *,
    batches: int = 200,
    sample: int = 200,
    seed: int = 1,
) -> NDArray[np.float64]:
    """From an event's arrival to the end of its batch, of a sample of the events of each batch."""
    rng = np.random.default_rng(seed)
    took_s, found = overheads.batch_s, []
    for number in range(batches):
        events = events_per_s * took_s
        waited_s = rng.uniform(0.0, took_s, sample)
        took_s = overheads.batch_s + sum(stage_s(each, events, slots, overheads, rng) for each in stages)
        if number >= batches // 4:
            found.append(waited_s + took_s)
    return np.concatenate(found)
