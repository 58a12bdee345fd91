"""AP's second half: which events each matcher gets, and for which of its slices.

Each event visits one of its candidate slices, as the forwarding policy likes, and all slices that every event
visits (``partitioning.strategy``). A matcher gets each of its events once, whatever slices they visit there::

    events   70  71  75  90                     places in the batch
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
        What was last reported of each slice. None: what its size says.
    now : float
        Seconds, on the clock of the reports.
    seed : int
        Of the policy `random`.
    """

    policy: str = "subscription_count"
    loads: LoadTable | None = None
    now: float = 0.0
    seed: int = 0


FORWARDING = Forwarding()
"""To the smallest slice: where one task searches all slices, that is the least work."""


@dataclass(frozen=True, slots=True, eq=False)
class Consignment:
    """The events of a batch that one matcher gets.

    Attributes
    ----------
    matcher : int
    events : int64[n]
        Their places in the batch, ascending.
    slices : sequence of int
        The slices that some of them visit.
    positions : sequence of int64[k]
        For each slice the events that visit it, as positions in `events`, ascending.
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
        What is known of each slice.
    draw
        Which of the sequences of chance of `forwarding`'s seed to draw from.
    receiver
        Who gets what is a matcher's, by number; None: nobody here. Default: it itself. Where events go does
        not depend on it.

    Returns
    -------
    list of Consignment
        One for each receiver that gets an event.
    """
    if not columns.size:
        return []
    if len(holders) == 1:
        everyone = np.arange(columns.size)
        whose = receiver(holders[0])
        return [] if whose is None else [Consignment(whose, everyone, [0], [everyone])]
    policy = policy_of(forwarding.policy, holders, np.random.default_rng([forwarding.seed, draw]))
    routes = partitioning.route(columns)
    forwarded = forward_batch(policy, routes, loads, forwarding.now)
    start, visits = forwarded.by_slice(routes, len(holders))
    visited: dict[int, list[int]] = {}
    for number in np.flatnonzero(np.diff(start)).tolist():
        whose = receiver(holders[number])
        if whose is not None:
            visited.setdefault(whose, []).append(number)
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
