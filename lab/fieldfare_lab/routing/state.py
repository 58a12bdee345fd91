"""The durable state of a broker: one value, which a runtime stores and loads.

A runtime stores the state after each `handle`, together with what was `Delivered`, and carries out the other
effects after that. So an acknowledgement never precedes what it acknowledges, and a crash is: load the state
that was stored last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fieldfare_lab.routing.covering import Covering
from fieldfare_lab.routing.destinations import Numbering, Numberings
from fieldfare_lab.routing.messages import Accepted, Filter
from fieldfare_lab.routing.multicast import Multicast
from fieldfare_lab.routing.tables import (
    AdvertisementTable,
    LocalTable,
    RemoteTable,
)

RequestKey = tuple[str, str, str, int]
"""Subscriber's broker, subscription, origin and version: of a request, and of the answer that must come."""


@dataclass(slots=True)
class Received:
    """How many records have come from one source, so that an answer is not processed before them.

    An answer names a revision of its source and the number of records that the source sent before it. Only
    while an answer is outstanding, records are counted by stamp; all earlier ones have lower stamps than
    any later answer.
    """

    below: int = 0
    by_stamp: dict[int, int] = field(default_factory=dict)
    outstanding: set[RequestKey] = field(default_factory=set)

    def add(self, stamp: int) -> None:
        """Count a record."""
        if self.outstanding:
            self.by_stamp[stamp] = self.by_stamp.get(stamp, 0) + 1
        else:
            self.below += 1

    def has_all(self, answer: Accepted) -> bool:
        """Return whether all records that the source sent before an answer have come."""
        count = sum(n for stamp, n in self.by_stamp.items() if stamp < answer.after_stamp)
        return self.below + count >= answer.after_count

    def answered(self, key: RequestKey) -> None:
        """Note that an answer was processed, or need not come."""
        self.outstanding.discard(key)
        if not self.outstanding:
            self.below += sum(self.by_stamp.values())
            self.by_stamp.clear()


@dataclass(slots=True)
class Group:
    """The remote matching tables of one cluster (FBR: of one neighbour): R-SRT and R-PRT.

    Attributes
    ----------
    told
        The brokers to which this broker has sent its advertisements.
    """

    advertisements: AdvertisementTable = field(default_factory=AdvertisementTable)
    subscriptions: RemoteTable = field(default_factory=RemoteTable)
    told: set[str] = field(default_factory=set)


@dataclass(slots=True)
class State:
    """All that a broker must not lose.

    Attributes
    ----------
    identity
        Drawn once, when the broker is created; tells apart two brokers with one name.
    revision
        Its clock: every change of a local subscription or advertisement, and every answer, gets the next one.
    row_version
        The version of its link-state row.
    multicast
        Links, topology (TRT, SPRT) and what is in custody.
    numberings
        The numberings of each cluster's brokers in destination lists.
    advertisements, subscriptions
        L-SRT and L-PRT.
    groups
        R-SRT and R-PRT of each cluster.
    origins
        The group from which each origin's advertisements came.
    askers
        (group, source) of each (subscriber, subscription, origin) that was passed on.
    sent, received
        Records by destination and by source.
    removed
        The brokers that were removed for good, in any cluster.
    covering
        What was asked for at the next hops, with covering.
    held
        Answers that came before the records that they must follow.
    published
        The next offset of each partition of the local log.
    """

    name: str
    identity: str
    multicast: Multicast
    revision: int = 0
    row_version: int = 0
    advertisements: dict[str, tuple[int, Filter]] = field(default_factory=dict)
    subscriptions: LocalTable = field(default_factory=LocalTable)
    groups: dict[str, Group] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    askers: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, Received] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    covering: Covering = field(default_factory=Covering)
    held: list[tuple[str, Accepted]] = field(default_factory=list)
    published: dict[int, int] = field(default_factory=dict)
    numberings: dict[str, Numberings] = field(default_factory=dict)

    def numberings_of(self, group: str) -> list[Numbering]:
        """Return the numbering of a cluster's present brokers, and some earlier ones, the latest first."""
        return self.numberings.setdefault(group, Numberings()).of(self.multicast.overlays[group])

    def next_revision(self) -> int:
        """Advance the broker's clock."""
        self.revision += 1
        return self.revision
