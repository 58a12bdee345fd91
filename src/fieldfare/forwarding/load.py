"""The load of slices: measured by matchers, reported to dispatchers, kept by each of them in a table.

Li et al. 2011, section III.B.2: for each dimension a matcher monitors its queue's length q, and periodically
calculates the rates of arrival λ and of matching μ over the past w seconds. Section IV.C: it pushes them
every second, if they changed by more than 10%.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray


class LoadReport(NamedTuple):
    """The load of one slice, which is one dimension's set of subscriptions on one matcher."""

    slice: int
    at_s: float
    """t', the time of the measurement."""
    queue_length: float
    """q, the number of waiting messages."""
    arrivals_per_s: float
    """λ"""
    matches_per_s: float
    """μ, messages matched per second of matching; 0 if none has been matched yet."""
    subscriptions: int
    """|S^i(M_j)|"""


class LoadTable:
    """The last report of every slice, as float64[slices] arrays; a dispatcher's view of the matchers.

    `matches_per_s` is never zero, so that costs are finite: for a slice without measurements it is estimated
    from its number of subscriptions and the average time per subscription elsewhere. Without any report
    slices rank by their subscriptions.
    """

    def __init__(self, slice_count: int) -> None:
        self.at_s = np.zeros(slice_count)
        self.queue_length = np.zeros(slice_count)
        self.arrivals_per_s = np.zeros(slice_count)
        self.subscriptions = np.zeros(slice_count)
        self.measured_per_s = np.zeros(slice_count)
        self._guessed_per_s = np.ones(slice_count)

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Self:
        """Return a table that knows only the number of subscriptions of each slice."""
        table = cls(len(sizes))
        table.take(LoadReport(number, 0.0, 0.0, 0.0, 0.0, size) for number, size in enumerate(sizes))
        return table

    @property
    def matches_per_s(self) -> NDArray[np.float64]:
        """μ of every slice, estimated for slices without measurements."""
        return np.where(self.measured_per_s > 0, self.measured_per_s, self._guessed_per_s)

    def take(self, reports: Iterable[LoadReport]) -> None:
        """Replace the loads of the reported slices; a report older than the known one is dropped."""
        for report in reports:
            i = report.slice
            if report.at_s < self.at_s[i]:
                continue
            self.at_s[i] = report.at_s
            self.queue_length[i] = report.queue_length
            self.arrivals_per_s[i] = report.arrivals_per_s
            self.subscriptions[i] = report.subscriptions
            self.measured_per_s[i] = report.matches_per_s
        self._guess()

    def _guess(self) -> None:
        known = self.measured_per_s > 0
        searched = float(np.maximum(1, self.subscriptions[known]).sum())
        time_s = float((1 / self.measured_per_s[known]).sum())
        per_subscription_s = time_s / searched if searched else 1.0
        self._guessed_per_s = 1 / (per_subscription_s * np.maximum(1, self.subscriptions))


@dataclass(slots=True)
class _Measured:
    arrived: deque[tuple[float, int]] = field(default_factory=deque)
    matched: deque[tuple[float, int, float]] = field(default_factory=deque)
    queue_length: int = 0
    matches_per_s: float = 0.0
    sent: LoadReport | None = None


class LoadMeter:
    """A matcher's side: counts arrivals and matches, and decides what to report.

    Deviation from the paper, which does not define μ while a matcher idles: here it is messages matched per
    second *spent matching*. Per second of the clock it would fall with the arrivals, and an idle matcher
    would appear slow and stay idle.

    Parameters
    ----------
    window_s
        w. Longer: steadier rates; shorter: follows changes sooner.
    least_change
        The relative change of λ, μ or q that causes a report (the paper: 0.1). Higher: fewer messages; lower:
        more recent loads.
    """

    def __init__(self, started_s: float, window_s: float = 5.0, least_change: float = 0.1) -> None:
        self.window_s = window_s
        self.least_change = least_change
        self._started_s = started_s
        self._slices: dict[int, _Measured] = {}

    def arrived(self, slice_number: int, count: int, now: float) -> None:
        """Count messages that joined a slice's queue."""
        measured = self._slices.setdefault(slice_number, _Measured())
        measured.arrived.append((now, count))
        measured.queue_length += count

    def matched(self, slice_number: int, count: int, busy_s: float, now: float) -> None:
        """Count messages that were taken from a slice's queue and matched in `busy_s` seconds of matching."""
        measured = self._slices.setdefault(slice_number, _Measured())
        measured.matched.append((now, count, busy_s))
        measured.queue_length -= count
        while measured.matched[0][0] <= now - self.window_s:
            measured.matched.popleft()
        matching_s = sum(busy_s for _, _, busy_s in measured.matched)
        if matching_s > 0:
            measured.matches_per_s = sum(count for _, count, _ in measured.matched) / matching_s

    def reports(self, subscriptions: dict[int, int], now: float) -> list[LoadReport]:
        """Return the reports for all dispatchers: slices whose load changed enough since the last report.

        Parameters
        ----------
        subscriptions
            The number of subscriptions of each of the matcher's slices.
        """
        found = []
        for slice_number, count in subscriptions.items():
            measured = self._slices.setdefault(slice_number, _Measured())
            report = self._measure(slice_number, measured, count, now)
            if measured.sent is None or self._differs(measured.sent, report):
                measured.sent = report
                found.append(report)
        return found

    def _measure(self, slice_number: int, measured: _Measured, count: int, now: float) -> LoadReport:
        start = now - self.window_s
        while measured.arrived and measured.arrived[0][0] <= start:
            measured.arrived.popleft()
        span_s = min(self.window_s, now - self._started_s)
        arrived = sum(count for _, count in measured.arrived)
        arrivals_per_s = arrived / span_s if span_s > 0 else 0.0
        return LoadReport(
            slice_number, now, measured.queue_length, arrivals_per_s, measured.matches_per_s, count
        )

    def _differs(self, old: LoadReport, new: LoadReport) -> bool:
        pairs = (
            (old.queue_length, new.queue_length),
            (old.arrivals_per_s, new.arrivals_per_s),
            (old.matches_per_s, new.matches_per_s),
            (old.subscriptions, new.subscriptions),
        )
        return any(abs(a - b) > self.least_change * max(abs(a), abs(b)) for a, b in pairs)
