"""Forwarding of complete batches: from routes, loads and a policy to the slice of every event.

The paper's dispatchers forward one message at a time, and between two of them loads change. In a micro-batch
a million events are forwarded at one moment; with constant costs all events with the same candidates would go
to the same matcher, as in the paper's Figure 4 without extrapolation. So a batch is forwarded in rounds, and
a policy that extrapolates counts the events of earlier rounds as waiting. These are forgotten after the
batch: from then on λ and the next report represent them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.forwarding.load import LoadTable
from fieldfare.forwarding.policies import ForwardingPolicy, cheapest
from fieldfare.partitioning.strategy import NO_SLICE, Routes

ROUNDS = 256
"""Maximum rounds of a batch. More: finer balance; fewer: less work for each event."""
ROUND_EVENTS_MIN = 16


@dataclass(frozen=True, slots=True, eq=False)
class Forwarded:
    """Where each event of a batch goes, besides the slices that every event visits.

    `chosen` is int32[n]: a candidate, or NO_SLICE if the event has no candidates (a strategy with `always`
    slices only) or none is reachable. In the latter case the event has to wait for recovery.
    """

    chosen: NDArray[np.int32]

    def by_slice(self, routes: Routes, slice_count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the events that visit each slice, as CSR: start int64[slices + 1]; events, ascending.

        Slice i is visited by ``events[start[i]:start[i + 1]]``: those that chose it, or all events of the
        batch if it is one that every event visits.
        """
        size = len(self.chosen)
        order = np.argsort(self.chosen, kind="stable")
        first = np.searchsorted(self.chosen[order], np.arange(slice_count + 1))
        visits = [order[first[i] : first[i + 1]] for i in range(slice_count)]
        for i in routes.always.tolist():
            visits[i] = np.arange(size)
        start = np.zeros(slice_count + 1, np.int64)
        np.cumsum([len(found) for found in visits], out=start[1:])
        return start, np.concatenate([np.zeros(0, np.int64), *visits])


def forward_batch(
    policy: ForwardingPolicy,
    routes: Routes,
    loads: LoadTable,
    now: float,
    live: NDArray[np.bool_] | None = None,
) -> Forwarded:
    """Choose a candidate for every event.

    Parameters
    ----------
    live : bool[slices]
        Whether a slice's matcher is reachable. Default: all are.
    """
    slice_count = len(loads.at_s)
    if live is None:
        live = np.ones(slice_count, np.bool_)
    size, choices = routes.candidates.shape
    chosen = np.full(size, NO_SLICE, np.int32)
    if not choices:
        return Forwarded(chosen)
    step = max(ROUND_EVENTS_MIN, -(-size // ROUNDS)) if policy.follows_batch else max(1, size)
    ahead = np.zeros(slice_count)
    for start in range(0, size, step):
        block = slice(start, start + step)
        candidates = routes.candidates[block]
        chosen[block] = found = cheapest(policy.costs(loads, now, candidates, ahead), candidates, live)
        ahead += np.bincount(found[found != NO_SLICE], minlength=slice_count)
    return Forwarded(chosen)
