"""AP when the subscriptions are spread over matchers: which events each matcher gets, and for which slices.

Each event visits one of its candidate slices, as the forwarding policy likes, and all slices that every event
visits (``partitioning.strategy``). A matcher gets each of its events once, whatever slices they visit there::

    events   70  71  75  90                     places in the batch
    slice 3   x       x                         positions 0 2
    slice 9       x   x   x                     positions 1 2 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.forwarding import ForwardingPolicy, LoadTable, forward_batch
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.partitioning import Partitioning


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
    columns: ColumnBatch, partitioning: Partitioning, policy: ForwardingPolicy, loads: LoadTable, now: float
) -> list[Consignment]:
    """Divide a batch of events among the matchers.

    Parameters
    ----------
    columns : the events, with the partitioning's attributes
    loads : what was last reported of each slice
    now : seconds, on the clock of the reports

    Returns
    -------
    list of Consignment
        One for each matcher, whether it gets an event or not.
    """
    slices = partitioning.slices
    if len(slices) == 1:
        everyone = np.arange(columns.size)
        return [
            Consignment(slices[0].matcher, everyone, [0] if columns.size else [], [everyone][: columns.size])
        ]
    routes = partitioning.route(columns)
    forwarded = forward_batch(policy, routes, loads, now)
    start, visits = forwarded.by_slice(routes, len(slices))
    visited: dict[int, list[int]] = {part.matcher: [] for part in slices}
    for number in np.flatnonzero(np.diff(start)).tolist():
        visited.setdefault(slices[number].matcher, []).append(number)
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
