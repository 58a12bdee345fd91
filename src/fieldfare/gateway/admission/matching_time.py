"""Charges each space for the processor time that matching its events takes: the quota `matching_ms_per_s`.

    publish ──▶ expect: the estimate is taken out ──▶ appended ──▶ matched: the time measured is taken instead

The time to match an event is known only afterwards, and many more may be published until then. So an estimate
is charged on admission: the bytes of the record, times the recent milliseconds per byte of the space's
events. A space with few measurements pays `PRIOR_MS` for the first `PRIOR_BYTES`: a few of its events are
admitted until the first ones are matched, and more once they turn out to be cheap. The estimate is given back
when a block of the match log covers the record, and the time that the block states is charged.

All times are in seconds of a monotonic clock. Only the event loop calls this.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from fieldfare.gateway.admission.quotas import MATCHING, Quotas

PRIOR_MS = 50.0
PRIOR_BYTES = 1_000.0
"""Estimate for a space without measurements: the milliseconds that this many bytes of its events take. It has
the weight of a measurement of that many bytes.
"""
MEMORY_S = 10.0
"""Time between two measurements, in seconds, after which the older one has about a third of its weight.
Without a newer one it keeps its full weight: a restarted pipeline makes no ordinary publisher wait.
"""


@dataclass(slots=True)
class _MeasuredTime:
    """Recent matching time of a space, with less weight for older measurements."""

    at_s: float
    spent_ms: float = 0.0
    size_bytes: float = 0.0

    def pass_to(self, now_s: float) -> None:
        share = math.exp((self.at_s - now_s) / MEMORY_S)
        self.spent_ms, self.size_bytes, self.at_s = self.spent_ms * share, self.size_bytes * share, now_s


@dataclass(slots=True, eq=False)
class ExpectedTime:
    """A record that is being appended, and the estimated time to match it.

    Attributes
    ----------
    place : (int, int) or None
        Its partition and offset, once it is appended; a record that is never appended costs nothing.
    """

    space: str
    size_bytes: int
    expected_ms: float
    place: tuple[int, int] | None = None


class MatchingTime:
    """Charges spaces for the matching of their events.

    Parameters
    ----------
    quotas
        The quotas with their buckets.
    clock_s
        A monotonic clock; default: this machine's.
    """

    def __init__(self, quotas: Quotas, clock_s: Callable[[], float] | None = None) -> None:
        self._quotas = quotas
        self._clock_s = clock_s or time.monotonic
        self._measured: dict[str, _MeasuredTime] = {}
        self._waiting: dict[int, list[tuple[int, ExpectedTime]]] = {}
        """For each partition, a heap by offset of the records that are not matched yet."""
        quotas.call_on_change(self._forget)

    @contextmanager
    def expecting(self, space: str, size_bytes: int) -> Iterator[ExpectedTime]:
        """Charge the estimate for a record while it is appended, and from then on until it is matched."""
        expected = ExpectedTime(space, size_bytes, 0.0)
        if self._quotas.limit(space, MATCHING) is not None:
            expected.expected_ms = size_bytes * self.ms_per_byte(space)
            self._reserve(expected, 1)
        try:
            yield expected
        finally:
            if expected.place is None:
                self._reserve(expected, -1)
            elif expected.expected_ms:
                partition, offset = expected.place
                heapq.heappush(self._waiting.setdefault(partition, []), (offset, expected))

    def _reserve(self, expected: ExpectedTime, times: int) -> None:
        self._quotas.reserve(expected.space, MATCHING, times * expected.expected_ms, self._clock_s())

    def matched(self, partition: int, end: int, spent_ms: Mapping[str, float]) -> None:
        """Charge each space's measured time, as all records of a partition before an offset are matched."""
        sizes, waiting = Counter[str](), self._waiting.get(partition, [])
        while waiting and waiting[0][0] < end:
            _, expected = heapq.heappop(waiting)
            sizes[expected.space] += expected.size_bytes
            self._reserve(expected, -1)
        now_s = self._clock_s()
        for space, took_ms in spent_ms.items():
            self._quotas.spend(space, now_s, **{MATCHING: took_ms})
        for space, size_bytes in sizes.items():
            measured = self._measured.setdefault(space, _MeasuredTime(now_s))
            measured.pass_to(now_s)
            measured.spent_ms += spent_ms.get(space, 0.0)
            measured.size_bytes += size_bytes

    def ms_per_byte(self, space: str) -> float:
        """Return the estimate for a byte of a space's events, in milliseconds."""
        measured = self._measured.get(space)
        if measured is None:
            return PRIOR_MS / PRIOR_BYTES
        return (measured.spent_ms + PRIOR_MS) / (measured.size_bytes + PRIOR_BYTES)

    def _forget(self, space: str) -> None:
        """Forget the measurements of a space that was deleted or whose quotas were changed."""
        self._measured.pop(space, None)
