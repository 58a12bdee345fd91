"""The links of a broker to its neighbours, and the exchange with each other broker: interface.

A link is an outbox on the sender's side and a watermark on the receiver's. An entry of an outbox gets a
number when it is first transmitted, and stays until the neighbour has acknowledged it, which it does after it
has stored it. An entry whose number is not above the watermark was received before. Each method that changes
something is one transaction, durable on return: a kill at any moment loses nothing and sends nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

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


class LinkStore(Protocol):
    """The state of a broker's links, in one file; used by the gateway's process, read by others."""

    @property
    def identity(self) -> str:
        """A text drawn at random when the file was created: two brokers of one name differ in it."""
        ...

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever exchanged with another broker."""
        ...

    def row(self) -> tuple[int, bytes]:
        """Return the version of the broker's own row of the topology, and the encoded rows of others."""
        ...

    def set_row(self, version: int, rows: bytes) -> None:
        """Store the version of the own row, and the encoded rows of others."""
        ...

    def meet(self, peer: str, identity: str) -> bool:
        """Return whether a neighbour has the identity that it had at first; store it if it is new."""
        ...

    def watermark(self, peer: str) -> int:
        """Return the number of the last entry received from a neighbour."""
        ...

    def correspondents(self) -> dict[str, Correspondent]:
        """Return all other brokers with which something was exchanged, by name."""
        ...

    def add(
        self,
        parts: Sequence[Part],
        changed: Sequence[Correspondent] = (),
        cursor: tuple[int, int] | None = None,
    ) -> None:
        """Add entries to outboxes; store correspondents, and a cursor (a partition and an offset)."""
        ...

    def cursor(self, partition: int) -> int | None:
        """Return the offset up to which records are forwarded; None before the first."""
        ...

    def receive(self, peer: str, watermark: int, parts: Sequence[Part], mine: Sequence[Inbound]) -> None:
        """Move the watermark of a neighbour; store the entries in transit, and those for this broker."""
        ...

    def transmit(self, peer: str, count_max: int, bytes_max: int) -> tuple[int, list[bytes]]:
        """Return the first unacknowledged entries of an outbox, and the number of the first of them.

        Entries that were never transmitted get their numbers here. The bounds hold for all but one entry.
        """
        ...

    def acknowledge(
        self, peer: str, number: int, owed_by: Callable[[bytes], Sequence[Owed]] | None = None
    ) -> int:
        """Remove the entries up to a number from an outbox.

        `owed_by` returns the destinations that confirm an entry. A copy is kept for those of them, other
        than the neighbour, that were heard of by `confirm`. Return the number of entries that were not kept
        because the copies have reached `KEPT_MAX_BYTES`.
        """
        ...

    def confirm(self, receipts: Sequence[tuple[str, int, int]]) -> None:
        """Drop the copies of entries that brokers have.

        Each receipt is a broker, and the sequences up to which it has the entries with events and the
        messages with filters.
        """
        ...

    def receipts(self) -> Mapping[str, tuple[int, int]]:
        """Return the last receipt of each broker that confirms entries: see `confirm`."""
        ...

    def kept_through(self) -> int:
        """Return the id of the last copy; 0 without copies."""
        ...

    def kept(self, through: int, limit: int) -> list[Kept]:
        """Return the first copies up to an id."""
        ...

    def send_again(self, ways: Sequence[tuple[int, Sequence[Part]]]) -> None:
        """Put copies, by id, into outboxes; they are copies no longer, until they are acknowledged again."""
        ...

    def kept_totals(self) -> tuple[int, int]:
        """Return the number of copies, and their bytes."""
        ...

    def unsent(self, peers: Sequence[str], after: int, limit: int) -> list[tuple[int, str, bytes]]:
        """Return entries in these outboxes that were never transmitted, after an id: id, neighbour, entry."""
        ...

    def reroute(self, ways: Sequence[tuple[int, Sequence[Part]]]) -> None:
        """Replace entries, by id, by others; the first of these takes the entry's place in the order.

        An entry that was transmitted meanwhile is left as it is.
        """
        ...

    def forget(self, state: Correspondent, again: Callable[[bytes], bytes] | None = None) -> None:
        """Store the state of a removed broker; the entries of its outbox have no path from now on.

        Its state no longer holds `floor` and `published` back. `again` marks an entry that was sent to it:
        it may have passed it on.
        """
        ...

    def take_back(self, peer: str, again: Callable[[bytes], bytes]) -> None:
        """Let the entries for a broker that is no neighbour any more have no path from now on.

        Of those that were sent, a copy marked by `again` has; they keep their numbers, without content, in
        case the broker becomes a neighbour again.
        """
        ...

    def inbound(self, limit: int, after: int = 0) -> list[Inbound]:
        """Return entries for this broker that are not processed, after an id."""
        ...

    def processed(self, ids: Sequence[int], changed: Sequence[Correspondent] = ()) -> None:
        """Remove entries for this broker, and store correspondents."""
        ...

    def advertisements(self) -> list[Advertisement]:
        """Return the advertisements of this broker and of others, by broker, space and version."""
        ...

    def advertise(self, broker: str, stated: Mapping[str, Sequence[Advertisement]]) -> None:
        """Replace the advertisements of a broker in some spaces, in one transaction."""
        ...

    def outboxes(self) -> Mapping[str, Outbox]:
        """Return the fill of each outbox that has entries, by neighbour."""
        ...

    def inbound_bytes(self) -> int:
        """Return the bytes of the entries for this broker that are not processed yet."""
        ...

    def used_bytes(self) -> int:
        """Return the bytes of the file that are in use; unlike `outboxes`, it does not read all entries."""
        ...

    def floor(self) -> int | None:
        """Return the lowest stamp of records that other brokers may still send; None if there are none."""
        ...

    def published(self) -> int | None:
        """Return the revision up to which all other brokers have been sent changes; None without brokers."""
        ...

    def close(self) -> None:
        """Close this process's connections; they are opened again when needed."""
        ...
