"""The loads of all brokers of a site: each measures its own, and requests over links carry them on.

They are not stored: a broker that starts hears of them within some requests, and old ones count no more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

import msgspec

from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.wire import LoadRow


class LoadBoard:
    """The newest load of each broker. Used on the event loop only."""

    def __init__(self, clusters: Clusters, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clusters = clusters
        self._clock_s = clock_s
        self._rows: dict[str, tuple[LoadRow, int, float]] = {}
        """By broker: its row, the change of this board that brought it, and when that was."""
        self._changes = 0
        self._sending: dict[str, int] = {}
        self._sent: dict[str, int] = {}

    def put(self, row: LoadRow) -> None:
        """Set the load of this broker, or that of another if it is newer than the known one."""
        known = self._rows.get(row.name)
        if known is None or known[0].number < row.number:
            self._changes += 1
            self._rows[row.name] = row, self._changes, self._clock_s()

    def merge(self, rows: Iterable[LoadRow]) -> None:
        """Take over newer loads of brokers that are known here, other than this one; NaN is no load."""
        for row in rows:
            figures = msgspec.structs.astuple(row)[3:]
            if self._clusters.cluster_of(row.name) is not None and all(map(math.isfinite, figures)):
                self.put(row)

    def rows_for(self, peer: str) -> tuple[LoadRow, ...]:
        """Return the loads that have changed since the last request that a neighbour has answered."""
        self._sending[peer] = self._changes
        sent = self._sent.get(peer, 0)
        return tuple(row for row, change, _ in self._rows.values() if change > sent and row.name != peer)

    def sent(self, peer: str) -> None:
        """Note that a neighbour has answered the last request."""
        self._sent[peer] = self._sending.get(peer, 0)

    def known(self) -> list[tuple[LoadRow, float]]:
        """Return all loads by name, each with its age in seconds."""
        now_s = self._clock_s()
        return [(row, now_s - at_s) for _, (row, _, at_s) in sorted(self._rows.items())]
