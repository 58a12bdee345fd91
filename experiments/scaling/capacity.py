"""Cores and memory that a pipeline needs, by subscriptions, events per second and partitioning.

A matcher is one task slot, a core, as in ``runtimes/spark/spread``. Core microseconds of an event::

    replicated        read + decode + search(N) + order                              any core does
    attribute space   read + decode + send + search(a segment's) + order    it goes to one matcher
    hash              read + decode + matchers x (send + search(N / matchers)) + order

and each machine holds the index that its cores match with. Cores are 60 % busy, since the elastic rules
(E-StreamHub, section V) keep them between 30 and 70.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from workloads import DOMAIN, NUMBERS, width

HERE = Path(__file__).resolve().parent
USED = 0.6
"""The share of a core that work may use."""
READ_BYTES_PER_S = 1.02e9
"""Reading rate of one reader of a log in Kafka: ``benchmarks/logs.py``, records of 100 KB."""
INDEX_SHARE = 0.5
"""The share of a machine's memory for the index: the rest is for the next snapshot and for tasks."""
MACHINES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that is rented."""

    name: str
    cores: int
    memory_bytes: float
    dollars_per_hour: float


@dataclass(frozen=True)
class Costs:
    """The measurements of ``calibrate.py`` for one kind of subscriptions."""

    kind: str
    rows: tuple[dict[str, Any], ...]
    send_us: float

    @cached_property
    def points(self) -> tuple[tuple[int, float], ...]:
        """Numbers of subscriptions, with the core microseconds per event to search them and sort matches."""
        return tuple((row["subscriptions"], row["search_us"] + row["order_us"]) for row in self.rows)

    @property
    def base_us(self) -> float:
        return 1e6 * self.event_bytes / READ_BYTES_PER_S + max(row["decode_us"] for row in self.rows)

    @property
    def order_share(self) -> float:
        """The part of a large index's time for sorting matches, which exit points do."""
        row = self.rows[-1]
        return float(row["order_us"] / (row["search_us"] + row["order_us"]))

    @property
    def index_bytes(self) -> float:
        """Bytes per subscription in a large index."""
        return float(self.rows[-1]["index_bytes"])

    @property
    def event_bytes(self) -> float:
        return float(self.rows[-1]["event_bytes"])

    def search_us(self, subscriptions: float) -> float:
        """Microseconds per event with a number of subscriptions.

        Interpolated linearly between the logarithms of measured sizes. Beyond the largest, the slope of the
        last two sizes is used: devices and boxes are looked up, and only the number of cache misses grows.
        """
        sizes, times = np.log([size for size, _ in self.points]), np.log([time for _, time in self.points])
        wanted = max(log(subscriptions), sizes[0])
        if wanted <= sizes[-1]:
            return float(np.exp(np.interp(wanted, sizes, times)))
        slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return float(np.exp(times[-1] + slope * (wanted - sizes[-1])))


def calibrated() -> dict[str, Costs]:
    """Measurements by kind of subscriptions."""
    found = json.loads((HERE / "calibration.json").read_text())
    kinds = dict.fromkeys(row["workload"] for row in found["steps"])
    return {
        kind: Costs(kind, tuple(row for row in found["steps"] if row["workload"] == kind), found["send_us"])
        for kind in kinds
    }


@dataclass(frozen=True, slots=True)
class Need:
    """The requirements of one partitioning.

    Attributes
    ----------
    event_us
        Core microseconds for one event, at all operators.
    matchers
        Task slots that match.
    machines
        Rented machines; more than `MACHINES_MAX` means that it is impossible with any number.
    bound
        What determines their number: ``cores``, ``memory``, or the reason why there is no number.
    """

    partitioning: str
    event_us: float
    matchers: int
    machines: int
    bound: str

    @property
    def is_possible(self) -> bool:
        return self.machines <= MACHINES_MAX


def held(kind: str, subscriptions: int, matchers: int) -> tuple[float, int]:
    """Subscriptions in the slice that an event visits in the attribute space, and copies per subscription."""
    if kind == "keys":
        return subscriptions / matchers, 1  # by the device alone: equality touches one segment
    overlap = width(subscriptions) / DOMAIN
    return min(float(subscriptions), subscriptions * (1 / matchers + overlap)), len(NUMBERS)


def _replicated(costs: Costs, subscriptions: int, matchers: int) -> tuple[float, float]:
    return costs.base_us + costs.search_us(subscriptions), subscriptions * costs.index_bytes


def _attribute_space(costs: Costs, subscriptions: int, matchers: int) -> tuple[float, float]:
    visited, copies = held(costs.kind, subscriptions, matchers)
    return costs.base_us + costs.send_us + costs.search_us(visited), visited * copies * costs.index_bytes


def _hash(costs: Costs, subscriptions: int, matchers: int) -> tuple[float, float]:
    size = subscriptions / matchers
    return costs.base_us + matchers * (costs.send_us + costs.search_us(size)), size * costs.index_bytes


PARTITIONINGS: dict[str, Callable[[Costs, int, int], tuple[float, float]]] = {
    "replicated": _replicated,
    "attribute_space": _attribute_space,
    "hash": _hash,
}
"""For each partitioning, the cost of an event with a number of matchers, and the bytes of a matcher's slices;
replicated slices are mapped once per machine."""


def need(partitioning: str, costs: Costs, subscriptions: int, events_per_s: float, machine: Machine) -> Need:
    """The minimum number of machines."""
    room = machine.memory_bytes * INDEX_SHARE
    event_us = PARTITIONINGS[partitioning]
    machines, by_memory = 1, False
    while machines <= MACHINES_MAX:
        matchers = machines * machine.cores
        us, slice_bytes = event_us(costs, subscriptions, matchers)
        a_machine = slice_bytes * (1 if partitioning == "replicated" else machine.cores)
        if a_machine > room:
            by_memory = True
            if partitioning == "replicated":
                return Need(partitioning, us, matchers, MACHINES_MAX + 1, "a machine's memory")
        elif events_per_s * us / 1e6 <= matchers * USED:
            return Need(partitioning, us, matchers, machines, "memory" if by_memory else "cores")
        else:
            by_memory = False
        machines = machines + 1 if machines < 100 else machines * 101 // 100
    why = "a machine's memory" if by_memory else "every matcher sees every event"
    return Need(partitioning, us, matchers, MACHINES_MAX + 1, why)
