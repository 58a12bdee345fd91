"""Publications as jobs: one at an access point, one at each matcher, one at an exit point.

    arrival ──▶ AP job ──▶ a job at each M slice ──all done──▶ EP job ──▶ notified

A host is a thread pool: one queue, first in first out, and one server per core. Jobs of one slice run
concurrently, as the paper's read locks allow. A stopped slice keeps its jobs until it resumes elsewhere.
Links take no time; a copied state does (``cluster``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

FILTERING_S = 48 / (422 * 100_000)
"""Core seconds of one encrypted filtering operation: the only calibrated constant.

With 12 hosts, 6 of them for matching, 48 cores process 422 publications per second against 100,000
subscriptions (Figure 6).
"""
AP_SHARE, EP_SHARE = 23 / 99, 25 / 99
"""The costs of access points and of exit points, each together, relative to the matchers'.

Figure 5's two hosts have 12 + 11, 13 + 12 and 25 + 25 + 26 + 23 per cent.
"""
SUBSCRIPTIONS = 100_000
"""Number of subscriptions for which the shares above are assumed."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost of a publication.

    Parameters
    ----------
    subscriptions
        Number stored by all matchers together; each does its share of the filtering, an exit point in
        proportion to the notifications.
    subscription_bytes
        State per subscription that moves; not in the paper.
    """

    subscriptions: int = SUBSCRIPTIONS
    access_points: int = 8
    matchers: int = 16
    exit_points: int = 8
    cores: int = 8
    subscription_bytes: int = 1000

    @property
    def costs_s(self) -> list[float]:
        """Core seconds of a job at each slice: access points, matchers, exit points."""
        whole_s = SUBSCRIPTIONS * FILTERING_S
        exit_s = EP_SHARE * whole_s * self.subscriptions / SUBSCRIPTIONS
        return (
            [AP_SHARE * whole_s] * self.access_points
            + [self.subscriptions * FILTERING_S / self.matchers] * self.matchers
            + [exit_s] * self.exit_points
        )

    @property
    def publication_s(self) -> float:
        """Core seconds of one publication in total."""
        return (AP_SHARE * SUBSCRIPTIONS + (1 + EP_SHARE) * self.subscriptions) * FILTERING_S


@dataclass(eq=False, slots=True)
class Cores:
    """One host's thread pool."""

    free: int
    waiting: deque[tuple[int, int]] = field(default_factory=deque)


class Engine:
    """All hosts' jobs. Time advances only with `advance`.

    Parameters
    ----------
    arrived_s
        Arrival times of publications, ascending.

    Attributes
    ----------
    delay_s
        Time from arrival to notification, NaN for publications in progress.
    busy_s
        Core seconds of each slice, counted when a job is done.
    arrived, done, running
        Numbers of jobs of each slice.
    """

    def __init__(self, model: CostModel, arrived_s: NDArray[np.float64]) -> None:
        self.model = model
        self.arrived_s = arrived_s
        self.delay_s = np.full(len(arrived_s), np.nan)
        self._cost_s = model.costs_s
        count = len(self._cost_s)
        self.busy_s = [0.0] * count
        self.arrived, self.done, self.running = [0] * count, [0] * count, [0] * count
        self._at: list[Cores | None] = [None] * count
        self._held: list[list[int]] = [[] for _ in range(count)]
        self._left: dict[int, int] = {}
        self._ends: list[tuple[float, int, int, int, Cores]] = []
        self._next = 0
        self._order = 0

    def advance(self, until_s: float) -> None:
        """Process everything that happens before this time."""
        access, matchers = self.model.access_points, self.model.matchers
        exits = access + matchers
        arrived_s, ends, cost_s = self.arrived_s, self._ends, self._cost_s
        while True:
            coming_s = arrived_s[self._next] if self._next < len(arrived_s) else np.inf
            if ends and ends[0][0] <= coming_s:
                if ends[0][0] > until_s:
                    return
                now_s, _, slice_, publication, cores = heappop(ends)
                self.done[slice_] += 1
                self.running[slice_] -= 1
                self.busy_s[slice_] += cost_s[slice_]
                if cores.waiting:
                    waiting, its = cores.waiting.popleft()
                    self._begin(waiting, its, cores, now_s)
                else:
                    cores.free += 1
                if slice_ < access:
                    self._left[publication] = matchers
                    for each in range(access, exits):
                        self._submit(each, publication, now_s)
                elif slice_ < exits:
                    self._left[publication] -= 1
                    if not self._left[publication]:
                        del self._left[publication]
                        self._submit(exits + publication % self.model.exit_points, publication, now_s)
                else:
                    self.delay_s[publication] = now_s - arrived_s[publication]
            elif coming_s <= until_s:
                publication = self._next
                self._next += 1
                self._submit(publication % access, publication, float(coming_s))
            else:
                return

    def _begin(self, slice_: int, publication: int, cores: Cores, now_s: float) -> None:
        self.running[slice_] += 1
        self._order += 1
        heappush(self._ends, (now_s + self._cost_s[slice_], self._order, slice_, publication, cores))

    def _submit(self, slice_: int, publication: int, now_s: float) -> None:
        self.arrived[slice_] += 1
        self._put(slice_, publication, now_s)

    def _put(self, slice_: int, publication: int, now_s: float) -> None:
        cores = self._at[slice_]
        if cores is None:
            self._held[slice_].append(publication)
        elif cores.free:
            cores.free -= 1
            self._begin(slice_, publication, cores, now_s)
        else:
            cores.waiting.append((slice_, publication))

    def stop(self, slice_: int) -> None:
        """Start no more jobs of a slice; waiting and arriving jobs are held."""
        cores = self._at[slice_]
        if cores is None:
            return
        self._at[slice_] = None
        self._held[slice_] += [publication for each, publication in cores.waiting if each == slice_]
        cores.waiting = deque(job for job in cores.waiting if job[0] != slice_)

    def go_on(self, slice_: int, cores: Cores, now_s: float) -> None:
        """Run a slice at this host from now on; held jobs come first."""
        self._at[slice_] = cores
        held, self._held[slice_] = self._held[slice_], []
        for publication in held:
            self._put(slice_, publication, now_s)


def arrivals(rates: Sequence[tuple[float, float]], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a Poisson process whose rate changes linearly from one (time, rate) to the next."""
    times = np.array([time for time, _ in rates])
    per_s = np.array([rate for _, rate in rates])
    expected = np.concatenate([[0.0], np.cumsum(np.diff(times) * (per_s[1:] + per_s[:-1]) / 2)])
    count = rng.poisson(expected[-1])
    wanted = np.sort(rng.uniform(0.0, expected[-1], count))
    fine_s = np.arange(times[0], times[-1], 0.1)
    fine_per_s = np.interp(fine_s, times, per_s)
    grown = np.concatenate([[0.0], np.cumsum((fine_per_s[1:] + fine_per_s[:-1]) * 0.05)])
    grown *= expected[-1] / grown[-1] if grown[-1] else 1.0
    return np.asarray(np.interp(wanted, grown, fine_s))
