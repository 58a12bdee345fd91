"""Policies that select one of an event's candidates (Li et al. 2011, sections III.B and IV.D).

A policy assigns a cost to every slice, from the load reports alone; an event goes to its cheapest candidate:

    adaptive             (q_t + 1) / μ     with q_t = q_t' + (λ - μ) (t - t'), the queue as it will be now
    response_time        (q_t' + 1) / μ    the same without the extrapolation since the report at t'
    subscription_count   |S^i(M_j)|        how many subscriptions must be searched
    random               none              any candidate, with equal probability
    balanced             price / μ         not in the paper: for complete batches, see `Balanced`

Costs of a batch of candidates are computed and compared by columns. If candidates tie, the first wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldfare.forwarding.load import LoadTable
from fieldfare.partitioning.strategy import NO_SLICE

Floats = NDArray[np.float64]
Slices = NDArray[np.int32]


class ForwardingPolicy(Protocol):
    """A policy: the cost of sending an event to each of its candidates."""

    follows_batch: ClassVar[bool]
    """Whether a slice's cost grows with the events already sent to it; see `forward_batch`."""
    by_rate: ClassVar[bool]
    """Whether the policy uses the matching rates of slices."""

    def costs(self, loads: LoadTable, now: float, candidates: Slices, ahead: Floats) -> Floats:
        """Return the cost of sending the next event to each candidate: float64[n, c].

        Parameters
        ----------
        candidates : int32[n, c], slices
        ahead : float64[slices]
            Events of the same batch that were sent to each slice before.
        """


@dataclass(frozen=True)
class Adaptive:
    """The shortest estimated processing time: queueing and matching, extrapolated to now.

    Deviation: the extrapolated queue is never negative; the paper's formula makes it negative as soon as a
    matcher is faster than its arrivals.
    """

    follows_batch: ClassVar[bool] = True
    by_rate: ClassVar[bool] = True

    def costs(self, loads: LoadTable, now: float, candidates: Slices, ahead: Floats) -> Floats:
        rate = loads.matches_per_s
        cost: Floats = (queues_at(loads, now) + ahead + 1) / rate
        return cost[candidates]


def queues_at(loads: LoadTable, now: float) -> Floats:
    """Return q_t: every slice's queue, extrapolated from its last report to now."""
    grown = (loads.arrivals_per_s - loads.matches_per_s) * (now - loads.at_s)
    queues: Floats = np.maximum(0.0, loads.queue_length + grown)
    return queues


@dataclass(frozen=True)
class Balanced:
    """The least matching time, weighted with a price of the matcher: for batches, beyond the paper.

    With the shortest processing time each event optimises for itself: it would rather search many
    subscriptions at once than wait for few. A batch is complete when its last event is, so the time that
    *others* lose counts. Here a matcher's price grows with its share of the work, ``(its work / the mean
    work) ** exponent``, and an event goes where matching time times price is least: to a small set, unless
    that matcher is among the busiest. (Multiplicative weights for scheduling on unrelated machines.) All
    slices of a matcher share its price, so μ must be measured while a slice has the CPU to itself, as in a
    Spark task.

    On the paper's workload with 20 matchers the busiest one has 20% less to do than under `Adaptive`.

    Parameters
    ----------
    holders : int32[slices]
        The matcher of each slice.
    exponent
        Higher: matchers are loaded more evenly; lower: events search less in total.
    """

    follows_batch: ClassVar[bool] = True
    by_rate: ClassVar[bool] = True
    holders: Slices = field(compare=False)
    exponent: float = 8.0

    def costs(self, loads: LoadTable, now: float, candidates: Slices, ahead: Floats) -> Floats:
        matching_s = 1 / loads.matches_per_s
        work_s = np.bincount(self.holders, (queues_at(loads, now) + ahead) * matching_s)
        mean_s = work_s.mean()
        price = (work_s / mean_s) ** self.exponent if mean_s > 0 else np.ones(len(work_s))
        cost: Floats = matching_s * np.maximum(price, _LEAST_PRICE)[self.holders]
        return cost[candidates]


_LEAST_PRICE = 1e-9
"""Minimum price, so that idle matchers still differ by their matching times."""


@dataclass(frozen=True)
class ResponseTime:
    """The shortest processing time as of the last report: the paper's comparison for `Adaptive`."""

    follows_batch: ClassVar[bool] = False
    by_rate: ClassVar[bool] = True

    def costs(self, loads: LoadTable, now: float, candidates: Slices, ahead: Floats) -> Floats:
        cost: Floats = (loads.queue_length + 1) / loads.matches_per_s
        return cost[candidates]


@dataclass(frozen=True)
class SubscriptionCount:
    """The fewest subscriptions to search (section III.B.1)."""

    follows_batch: ClassVar[bool] = False
    by_rate: ClassVar[bool] = False

    def costs(self, loads: LoadTable, now: float, candidates: Slices, ahead: Floats) -> Floats:
        return loads.subscriptions[candidates]


@dataclass(frozen=True)
class Random:
    """A random candidate: the paper's baseline; `rng` is the caller's, seeded."""

    follows_batch: ClassVar[bool] = False
    by_rate: ClassVar[bool] = False
    rng: np.random.Generator = field(compare=False)

    def costs(self, loads: LoadTable, now: float, candidates: Slices, ahead: Floats) -> Floats:
        return self.rng.random(candidates.shape)


POLICIES = ("adaptive", "response_time", "subscription_count", "random", "balanced")


def policy_of(name: str, holders: Sequence[int], rng: np.random.Generator) -> ForwardingPolicy:
    """Return a policy by its name; ValueError for an unknown name.

    Parameters
    ----------
    holders
        The matcher of each slice.
    rng
        The generator for `Random`.
    """
    match name:
        case "adaptive":
            return Adaptive()
        case "response_time":
            return ResponseTime()
        case "subscription_count":
            return SubscriptionCount()
        case "random":
            return Random(rng)
        case "balanced":
            return Balanced(np.array(holders, np.int32))
    raise ValueError(f"{name!r} is not a forwarding policy; policies are {', '.join(POLICIES)}")


def cheapest(costs: Floats, candidates: Slices, live: NDArray[np.bool_]) -> Slices:
    """Return the cheapest live candidate of each event, NO_SLICE if none is live: int32[n].

    Parameters
    ----------
    costs : float64[n, c]
    candidates : int32[n, c]
        NO_SLICE is not a candidate.
    live : bool[slices]
        Whether the slice's matcher is reachable.
    """
    if not candidates.shape[1]:
        return np.full(len(candidates), NO_SLICE, np.int32)
    usable = live[candidates] & (candidates != NO_SLICE)
    if not usable.all():
        costs = np.where(usable, costs, np.inf)
    place = costs.argmin(axis=1)
    events = np.arange(len(candidates))
    return np.where(usable[events, place], candidates[events, place], NO_SLICE).astype(np.int32)
