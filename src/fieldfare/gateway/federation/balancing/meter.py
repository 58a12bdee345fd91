"""The load of this broker, from what its gateway, its pipeline and its machine really do."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fieldfare.balancing.load import Load, MatchingCost
from fieldfare.gateway.federation.balancing.window import WINDOW_S, Window, last_matches
from fieldfare.storage.event_log import EventReader
from fieldfare.storage.match_log import MatchLog

_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class LoadMeter:
    """Measures the load of a broker.

    Parameters
    ----------
    output_bytes_per_s
        The output bandwidth of the broker: its operator knows it.
    cores
        Processor cores that matching may use.
    window_s
        The time over which the load is measured, at most `WINDOW_S`.
    """

    log: EventReader
    match_log: MatchLog
    output_bytes_per_s: float
    cores: int
    window_s: float = WINDOW_S

    def measure(self, subscriptions: int, others: Collection[int], since_ms: int) -> tuple[Load, Window]:
        """Return the load, and the last matches that it is computed from; it reads files.

        Parameters
        ----------
        subscriptions
            Number of subscriptions here.
        others
            Numbers under which matches of other brokers are reported: they are no deliveries here.
        since_ms
            When subscriptions moved last: earlier matches are of others than those that are here now.
        """
        queue_s = self._queue_s()
        # Rates are of the time before the oldest event of the queue: later events are not matched yet.
        end_ms = time.time_ns() // 1_000_000 - int(1000 * queue_s)
        window = last_matches(self.log, self.match_log, end_ms, since_ms, self.window_s)
        numbers, counts = window.matches()
        is_own = ~np.isin(numbers, np.array(sorted(others), np.uint32))
        per_s = float(counts[is_own].sum()) / window.span_s
        # The time is that of one core; all of them together match as many times more.
        matching_s = window.spent_s / window.events / self.cores if window.events else 0.0
        load = Load(
            input_per_s=window.events / window.span_s,
            matching_s=matching_s,
            subscriptions=subscriptions,
            deliveries_per_s=per_s,
            output_bytes_per_s=per_s * window.event_bytes,
            output_bytes_per_s_max=self.output_bytes_per_s,
            cpu=_cpu(),
            memory=_memory(),
            input_queue_s=queue_s,
            # The index takes about as much time for an event with more subscriptions or fewer; equation 4
            # of the paper would expect it to follow their number.
            cost=MatchingCost(fixed_s=matching_s),
            is_calibrated=True,
            span_s=window.span_s,
        )
        return load, window

    def _queue_s(self) -> float:
        """Return the age of the oldest record that is not matched yet, in seconds."""
        ages = [0.0]
        for partition in self.log.partitions:
            end = self.match_log.partition(partition.number).end(partition.start())
            ages += [time.time() - each.appended_ms / 1000 for each in partition.read(end, end + 1)]
        return max(ages)


def _cpu() -> float:
    """Return the share of the processors that the machine has used in the last minute, at most 1."""
    return min(1.0, os.getloadavg()[0] / max(1, os.cpu_count() or 1))


def _memory() -> float:
    """Return the share of the memory that is not available; 0 where the system does not say."""
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return 1.0 - sizes["MemAvailable"] / sizes["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError):
        return 0.0
