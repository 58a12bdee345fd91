"""Receipts: a destination tells each origin up to where it has its entries, without a gap.

An origin keeps a copy of an entry until all destinations have confirmed it, because a broker between may be
removed with what it has acknowledged. Receipts go along with the requests over links and are not stored on
their way: one may be lost, repeated or late, and the newest of each destination counts. A broker that sends
none (an older version) has nothing kept for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.wire import RECEIPT_HOPS_MAX, RECEIPTS_MAX, Entry, Events, Interest, Receipt
from fieldfare.storage.links import Owed

REPEATED_S = 30.0
"""Seconds after which a receipt is sent again unchanged, since it may have been lost."""

PASSED_ON_MAX = 10_000
"""Maximum receipts of others that wait for a request; the oldest are dropped."""


class Receipts:
    """The receipts that this broker sends, passes on and has got. Used on the event loop only."""

    def __init__(
        self,
        clusters: Clusters,
        correspondence: Correspondence,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clusters = clusters
        self._correspondence = correspondence
        self._clock_s = clock_s
        self._told: dict[str, tuple[Receipt, float]] = {}
        """By origin: the receipt that a neighbour has taken last, and when that was."""
        self._passed_on: dict[tuple[str, str], Receipt] = {}
        self._confirmed: dict[str, tuple[int, int]] = {}
        self._fresh: dict[str, tuple[int, int]] = {}

    def for_peer(self, peer: str) -> tuple[Receipt, ...]:
        """Return the receipts whose next hop is a neighbour; `sent` is called once it has them."""
        due = [each for each in self._passed_on.values() if self._clusters.path(each.to) == peer]
        now_s = self._clock_s()
        for name in () if self._clusters.is_relay else self._clusters.brokers:
            if self._clusters.path(name) != peer:
                continue
            broker = self._correspondence.brokers.get(name)
            messages = 0 if broker is None else broker.sequence
            receipt = Receipt(self._clusters.name, name, 0, self._correspondence.get(name).received, messages)
            told, at_s = self._told.get(name, (None, 0.0))
            if receipt != told or now_s - at_s >= REPEATED_S:
                due.append(receipt)
        return tuple(due[:RECEIPTS_MAX])

    def sent(self, receipts: Iterable[Receipt]) -> None:
        """Note that a neighbour has taken receipts."""
        now_s = self._clock_s()
        for each in receipts:
            if each.source == self._clusters.name:
                self._told[each.to] = each, now_s
            elif self._passed_on.get((each.source, each.to)) == each:
                del self._passed_on[each.source, each.to]

    def receive(self, receipts: Iterable[Receipt]) -> None:
        """Process receipts from a neighbour: for this broker, or to be passed on."""
        for each in receipts:
            if self._clusters.cluster_of(each.source) is None:
                continue
            if each.to == self._clusters.name:
                self._absorb(each)
            elif each.hops < RECEIPT_HOPS_MAX and self._clusters.cluster_of(each.to) is not None:
                key = each.source, each.to
                self._passed_on.pop(key, None)
                self._passed_on[key] = msgspec.structs.replace(each, hops=each.hops + 1)
                while len(self._passed_on) > PASSED_ON_MAX:
                    del self._passed_on[next(iter(self._passed_on))]

    def _absorb(self, receipt: Receipt) -> None:
        """Take over a receipt if it is newer than the last one, and of entries that were sent."""
        name, known = receipt.source, self._correspondence.get(receipt.source)
        if receipt.events > known.events or receipt.messages > known.messages:
            return
        last = self._confirmed.get(name)
        newer = receipt.events, receipt.messages
        if last is not None:
            newer = max(newer[0], last[0]), max(newer[1], last[1])
        if newer != last:
            self._confirmed[name] = self._fresh[name] = newer

    @property
    def is_fresh(self) -> bool:
        """Whether receipts have come that `take` has not returned."""
        return bool(self._fresh)

    def take(self) -> list[tuple[str, int, int]]:
        """Return the brokers with newer receipts, each with its entries with events and its messages."""
        fresh, self._fresh = self._fresh, {}
        return [(name, *values) for name, values in fresh.items()]

    def put_back(self, taken: Iterable[tuple[str, int, int]]) -> None:
        """Return receipts that could not be stored."""
        for name, *values in taken:
            self._fresh.setdefault(name, (values[0], values[1]))


def owed_of(entry: Entry, me: str) -> list[Owed]:
    """Return the destinations that confirm an entry of this broker; none for those of others."""
    if not isinstance(entry, Events | Interest) or entry.source != me:
        return []
    if isinstance(entry, Interest):
        return [Owed(each.name, "interest", entry.sequence) for each in entry.destinations]
    return [Owed(each.name, "events", each.sequence) for each in entry.destinations]


def marked_again(entry: Entry) -> Entry:
    """Return an entry as one that its destination may have."""
    return msgspec.structs.replace(entry, is_again=True) if isinstance(entry, Events) else entry
