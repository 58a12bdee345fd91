"""The waiting time of an event: Spark's micro-batches in simulated time, at half load.

A batch contains the events that arrived while the previous one ran. Its stages run one after another; the
driver launches the tasks of a stage one by one, each on the next free slot. The time of a task is the cost of
its share of the events, times a random factor, plus a fixed time. ``calibrate.py`` measures the fixed times.
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
    """Tasks that share a batch's events; `event_us` is the total cost per event."""

    tasks: int
    event_us: float


@dataclass(frozen=True, slots=True)
class Overheads:
    """Times that do not depend on events, in seconds.

    Attributes
    ----------
    batch_s
        Planning a batch and recording it in the checkpoint.
    launch_s
        The driver's time per task; tasks are launched one after another.
    task_s
        A task's fixed time on its slot.
    """

    batch_s: float
    launch_s: float
    task_s: float


def stage_s(stage: Stage, events: float, slots: int, overheads: Overheads, rng: np.random.Generator) -> float:
    """The time of a stage."""
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
    """Times from arrival to the end of the batch, for a sample of the events of each batch."""
    rng = np.random.default_rng(seed)
    took_s, found = overheads.batch_s, []
    for number in range(batches):
        events = events_per_s * took_s
        waited_s = rng.uniform(0.0, took_s, sample)
        took_s = overheads.batch_s + sum(stage_s(each, events, slots, overheads, rng) for each in stages)
        if number >= batches // 4:
            found.append(waited_s + took_s)
    return np.concatenate(found)
