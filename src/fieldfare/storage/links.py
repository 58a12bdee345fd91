"""The links of a broker to its neighbours, and the exchange with each other broker: what is stored of them.

A link is an outbox on the sender's side and a watermark on the receiver's. An entry of an outbox gets a
number when it is first transmitted, and stays until the neighbour has acknowledged it, which it does after it
has stored it. An entry whose number is not above the watermark was received before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Part = tuple[str, bytes]
"""A neighbour, empty for entries without a path at present, and an encoded entry for its outbox."""

KEPT_MAX_BYTES = 1 << 30
"""Maximum bytes of the copies that are kept until destinations confirm them; further entries with events are
not kept."""


@dataclass(frozen=True, slots=True)
class Correspondent:
    """Another broker, whether it is a neighbour or not.

    Attributes
    ----------
    messages
        Number of messages with changes of filters that were sent to it.
    through
        The revision of this registry up to which these messages include all changes.
    events
        Number of entries with events that were sent to it.
    counted
        The greatest revision of its registry that a sent `counts` entry has named.
    received
        All entries with events that it has sent up to this sequence are in the log.
    ahead
        The later sequences that are in the log, too, each with the entry's revision of this registry.
    pending
        A `counts` entry of its that waits for earlier events: their number, and a revision of this registry.
    floor
        No record of its that is still to come has a lower stamp, a revision of this registry.
    counts_through
        Subscriptions here with at most this revision count for all its later records.
    repeats
        Number of entries with events that it has sent twice; they were not appended again.
    stamps
        The greatest stamps of its records that were received, in its own revisions: by the revision of this
        registry from which on they count, see `federation.inbox.Inbox.bounds`.
    is_removed
        The broker was removed for good: nothing is kept for it any more.
    again
        The greatest sequence of its entries with events that came marked as sent again.
    withdrawn
        The revision of this registry as of which it was told that this broker, which is leaving, has no
        filters; 0 if it was not.
    advertised
        The greatest version of this broker's advertisements that was sent to it; 0 if none was.
    confirmed
        It sends the filters that these advertisements need, up to this version.
    heeded
        The greatest version of its advertisements as of which filters are sent to it.
    """

    name: str
    messages: int = 0
    through: int = 0
    events: int = 0
    counted: int = 0
    received: int = 0
    ahead: Mapping[int, int] | None = None
    pending: tuple[int, int] | None = None
    floor: int = 0
    counts_through: int = 0
    repeats: int = 0
    stamps: Mapping[int, int] = field(default_factory=dict)
    is_removed: bool = False
    again: int = 0
    withdrawn: int = 0
    advertised: int = 0
    confirmed: int = 0
    heeded: int = 0


@dataclass(frozen=True, slots=True)
class Advertisement:
    """The events that a broker publishes in a space: those that match a filter; all if that is None.

    Attributes
    ----------
    broker
        The broker that says so; empty for this one.
    version
        Its number among all advertisements of its broker; 0 if it was not told to others yet.
    """

    broker: str
    space: str
    version: int
    filter: str | None
    dialect: str = "sql"


@dataclass(frozen=True, slots=True)
class Owed:
    """A destination that has not confirmed an entry, and the entry's sequence among those of its kind."""

    destination: str
    kind: Literal["events", "interest"]
    sequence: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy of an own entry that a neighbour has; `owed_to` are the brokers that have not confirmed it."""

    id: int
    entry: bytes
    owed_to: frozenset[str]


@dataclass(frozen=True, slots=True)
class Inbound:
    """An entry for this broker that was received and is not processed yet.

    `order` is the sequence of its kind from its source; `floor` the stamp of its events, None without events.
    """

    id: int
    source: str
    kind: str
    order: int
    floor: int | None
    entry: bytes


@dataclass(frozen=True, slots=True)
class Outbox:
    """The fill of a neighbour's outbox: its entries, their bytes, and how many were transmitted."""

    entries: int
    bytes: int
    sent: int
