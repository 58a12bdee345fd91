"""AP's second half: which events each matcher receives, and for which of its slices.

Each event visits one of its candidate slices, chosen by the forwarding policy, and all slices that every
event visits (``partitioning.strategy``). A matcher receives each of its events once, however many of its
slices the event visits::

    events   70  71  75  90                     indices in the batch
    slice 3   x       x                         positions 0 2
    slice 9       x   x   x                     positions 1 2 3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.forwarding import LoadTable, forward_batch, policy_of
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.partitioning import Partitioning


@dataclass(frozen=True, slots=True, eq=False)
class Forwarding:
    """How an event's slice is chosen among its candidates.

    Attributes
    ----------
    policy : str
        One of ``forwarding.POLICIES``.
    loads : LoadTable or None
        The last load report of each slice. None: estimate the load from the slice's size.
    now : float
        The current time in seconds, on the clock of the load reports.
    seed : int
        The seed of the policy `random`.
    """

    policy: str = "subscription_count"
    loads: LoadTable | None = None
    now: float = 0.0
    seed: int = 0


FORWARDING = Forwarding()
"""Forward to the smallest slice: the least work when one task searches all slices."""


@dataclass(frozen=True, slots=True, eq=False)
class Consignment:
    """The events of a batch that one matcher receives.

    Attributes
    ----------
    events : int64[n]
        Their indices in the batch, ascending.
    slices : sequence of int
        The slices that at least one of the events visits.
    positions : sequence of int64[k]
        For each slice, the events that visit it, as ascending indices into `events`.
    """

    matcher: int
    events: NDArray[np.int64]
    slices: Sequence[int]
    positions: Sequence[NDArray[np.int64]]


def dispatch(
    columns: ColumnBatch,
    partitioning: Partitioning,
    holders: Sequence[int],
    loads: LoadTable,
    forwarding: Forwarding,
    draw: int = 0,
    receiver: Callable[[int], int | None] = int,
) -> list[Consignment]:
    """Divide a batch of events among the matchers.

    Parameters
    ----------
    columns
        The events, with the partitioning's attributes.
    holders
        The matcher of each slice.
    loads
        The load of each slice.
    draw
        The number of the random stream of `forwarding`'s seed.
    receiver
        Maps a matcher to the receiver of its events, or to None if it has none here. Default: the matcher
        itself. The choice of slices does not depend on it.

    Returns
    -------
    list of Consignment
        One for each receiver of at least one event.
    """
    if not columns.size:
        return []
    if len(holders) == 1:
        everyone = np.arange(columns.size)
        target = receiver(holders[0])
        return [] if target is None else [Consignment(target, everyone, [0], [everyone])]
    policy = policy_of(forwarding.policy, holders, np.random.default_rng([forwarding.seed, draw]))
    routes = partitioning.route(columns)
    forwarded = forward_batch(policy, routes, loads, forwarding.now)
    start, visits = forwarded.by_slice(routes, len(holders))
    visited: dict[int, list[int]] = {}
    for number in np.flatnonzero(np.diff(start)).tolist():
        target = receiver(holders[number])
        if target is not None:
            visited.setdefault(target, []).append(number)
    consignments = []
    for matcher, numbers in sorted(visited.items()):
        places = [visits[start[number] : start[number + 1]] for number in numbers]
        present = np.zeros(columns.size, np.bool_)
        for place in places:
            present[place] = True
        events = np.flatnonzero(present)
        position = np.cumsum(present) - 1
        consignments.append(Consignment(matcher, events, numbers, [position[place] for place in places]))
    return consignments
