"""The messages between brokers: entries of links, in batches, as MessagePack.

A neighbour is no more trusted than a client: a batch that no broker of this version can have sent is refused.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from fieldfare.gateway.names import NAME
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import RECORD_EVENTS_MAX
from fieldfare.routing.messages import REVISION_MAX

VERSION = 2
"""Version of the protocol; a broker of another version is refused."""

MEDIA_TYPE = "application/vnd.fieldfare.link+msgpack"

BATCH_ENTRIES_MAX = 256
"""Maximum entries of a batch; a longer one is refused."""

BATCH_BYTES = 2 << 20
"""Bytes of entries after which a batch ends; a single larger entry is sent alone."""

DESTINATIONS_MAX = 1_000
"""Maximum brokers of an overlay, and of a destination list; more are refused."""

CLUSTERS_MAX = 1_000
"""Maximum clusters of all brokers together."""

LETTERS_MAX = 100
"""Maximum letters of a batch; a broker passes on the newest of them."""

LETTER_HOPS_MAX = 16
"""Maximum brokers that pass a letter on."""

RECEIPTS_MAX = 1_000
"""Maximum receipts of a batch."""

RECEIPT_HOPS_MAX = 64
"""Maximum brokers that pass a receipt on."""

LINKS_MAX = 1_000
FILTERS_MAX = 1_000
"""Maximum changes of filters in an entry; more are refused."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=REVISION_MAX)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
_Cluster = Annotated[str, msgspec.Meta(max_length=257)]
"""A cluster's name, or the names of both ends of a link; see `gateway.peers`."""


class Destination(msgspec.Struct, array_like=True, frozen=True):
    """A destination broker of an entry with events.

    Attributes
    ----------
    revision
        The destination's own revision, as of which the origin knew its filters when the events were
        published.
    sequence
        The number of this entry among the entries with events from this origin to this destination.
    """

    name: _Name
    revision: _Number = 0
    sequence: _Number = 0


_Destinations = Annotated[tuple[Destination, ...], msgspec.Meta(min_length=1, max_length=DESTINATIONS_MAX)]


class Events(msgspec.Struct, tag="events", frozen=True):
    """Events of one or more successive records of the origin, all for the same destinations.

    Attributes
    ----------
    source
        The origin: the broker where they were published.
    partition, offset, stamp
        The first of their records in the origin's log.
    payload
        As in `storage.event_log.NewRecord`.
    origin
        The origin of events that an edge broker passes on between clusters, as `origins.Origin.beyond`
        writes it. Then `source` and the other places are those of the edge broker.
    is_again
        A destination may have the entry: a broker that was removed had it.
    """

    source: _Name
    destinations: _Destinations
    space: _Name
    partition: _Number
    offset: _Number
    stamp: _Number
    count: Annotated[int, msgspec.Meta(ge=1, le=RECORD_EVENTS_MAX)]
    payload: bytes
    origin: Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9]{1,3}>[^>]{1,400})?$")] = ""
    is_again: bool = False


class FilterChange(msgspec.Struct, array_like=True, frozen=True):
    """A filter of the source, stored or (`filter` is None) removed; see `storage.brokers.RemoteFilter`."""

    space: _Name
    number: _Number
    filter: str | None
    dialect: str = "sql"


class Interest(msgspec.Struct, tag="interest", frozen=True):
    """Changes of the source's filters; with `theirs`, they are complete up to this revision of the source.

    `is_all` says that the source has no other filters than these: earlier ones are removed. Brokers of
    earlier versions keep them.
    """

    source: _Name
    destinations: _Destinations
    sequence: _Number
    filters: Annotated[tuple[FilterChange, ...], msgspec.Meta(max_length=FILTERS_MAX)]
    theirs: _Number | None = None
    is_all: bool = False


class Counts(msgspec.Struct, tag="counts", frozen=True):
    """Later entries with events of the source are published with the destination's filters as of `theirs`.

    Attributes
    ----------
    revision
        The source's revision from which that is so.
    theirs
        The destination's revision.
    after
        Number of entries with events that the source has sent to the destination before.
    """

    source: _Name
    destinations: _Destinations
    revision: _Number
    theirs: _Number
    after: _Number


class Lost(msgspec.Struct, tag="lost", frozen=True):
    """In place of an entry that a disk has lost."""


class Offer(msgspec.Struct, tag="offer", frozen=True):
    """A subscription is to move to the receiver.

    Attributes
    ----------
    delivery
        Its delivery settings, as a client sends them, secrets included.
    digest
        The SHA-256 of a token with which its readers may read it there.
    owner, labels
        Its owner, empty for none, and its labels; brokers of earlier versions do not send them.
    """

    space: _Name
    id: _Name
    filter: str
    dialect: str
    delivery: dict[str, Any]
    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    owner: str = ""
    labels: dict[str, str] = {}


class Accepted(msgspec.Struct, tag="accepted", frozen=True):
    """The subscription exists here, and counts for all later records of these brokers.

    `url` is the address at which clients reach this broker; empty if it is not known here.
    """

    brokers: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=DESTINATIONS_MAX)]
    url: Annotated[str, msgspec.Meta(max_length=2_000)] = ""


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The subscription does not move, and is not here."""

    reason: Annotated[str, msgspec.Meta(max_length=1_000)]


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """The sender has received all that it delivers: by origin, records up to these stamps."""

    bounds: dict[_Name, _Number]


class HandOver(msgspec.Struct, tag="hand-over", frozen=True):
    """The sender has delivered all of its part; these are the latest settings, owner and labels."""

    delivery: dict[str, Any]
    owner: str = ""
    labels: dict[str, str] = {}


class Cancelled(msgspec.Struct, tag="cancelled", frozen=True):
    """The subscription stays at the sender."""


class Taken(msgspec.Struct, tag="taken", frozen=True):
    """The receiver of a subscription delivers it now."""


Step = Offer | Accepted | Refused | Ended | HandOver | Cancelled | Taken


class Move(msgspec.Struct, tag="move", frozen=True):
    """A message of a session in which a subscription moves: see docs/decisions/balancing.md."""

    source: _Name
    destinations: _Destinations
    session: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    step: Step


Sent = Events | Interest | Counts | Move
Entry = Sent | Lost


class Row(msgspec.Struct, frozen=True):
    """A broker's row of a cluster: the neighbours to which its links are up. Only the broker writes it.

    Attributes
    ----------
    beyond
        The other clusters that are reached over this broker, if it is an edge broker.
    is_removed
        The broker has left, or an operator has removed it for good: any broker may write this, and no later
        row counts.
    is_leaving
        The broker is leaving, and passes nothing on: paths end at it. Brokers of earlier versions ignore it.
    is_relay
        The broker only passes entries on: it has no filters and events, and gets none. Brokers of earlier
        versions do not know that, and wait for its answers.
    heeds_advertisements
        The broker may be told what others publish, and sends them only the filters that can match it. If a
        broker of an earlier version has left it out on the way, it is told nothing, and sends all.
    """

    name: _Name
    identity: _Name
    version: _Number
    links: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=LINKS_MAX)]
    cluster: _Cluster = ""
    beyond: Annotated[tuple[_Cluster, ...], msgspec.Meta(max_length=CLUSTERS_MAX)] = ()
    is_removed: bool = False
    is_leaving: bool = False
    is_relay: bool = False
    heeds_advertisements: bool = False


_Rows = Annotated[tuple[Row, ...], msgspec.Meta(max_length=DESTINATIONS_MAX)]


_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


_State = Literal["OK", "BUSY", "N/A", "STABILIZING"]


class LoadRow(msgspec.Struct, frozen=True, array_like=True):
    """A broker's load, as `balancing.load.Load` has it, and its load balancing state; only it writes it.

    `number` increases with each message. `is_automatic` says whether it takes part in sessions.
    """

    name: _Name
    number: _Number
    state: _State
    input_per_s: _Ratio
    matching_s: _Ratio
    subscriptions: _Number
    deliveries_per_s: _Ratio
    output_bytes_per_s: _Ratio
    output_bytes_per_s_max: Annotated[float, msgspec.Meta(ge=1, le=1e15)]
    cpu: _Ratio
    memory: _Ratio
    queue_s: _Ratio
    is_automatic: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether no figure is NaN, which passes all bounds."""
        return all(map(math.isfinite, msgspec.structs.astuple(self)[3:]))


class Letter(msgspec.Struct, frozen=True, array_like=True):
    """A message between two brokers that negotiate a session of balancing; it may be lost, repeated or late.

    Attributes
    ----------
    hops
        Number of brokers that have passed it on.
    life, number
        The session: of the broker that asks, see `balancing.messages.SessionId`.
    state, load
        Of a reply: the state before the request and, if it is OK, the load.
    """

    source: _Name
    to: _Name
    hops: Annotated[int, msgspec.Meta(ge=0, le=LETTER_HOPS_MAX)]
    life: _Number
    number: _Number
    step: Literal["request", "reply", "cancel"]
    state: _State = "OK"
    load: LoadRow | None = None


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """A broker has entries of another one: see `federation.receipts`. It may be lost, repeated or late.

    Attributes
    ----------
    source, to
        The destination of the entries, and their origin.
    hops
        Number of brokers that have passed the receipt on.
    events, messages
        The sequences up to which it has the entries with events and the messages with filters.
    """

    source: _Name
    to: _Name
    hops: Annotated[int, msgspec.Meta(ge=0, le=RECEIPT_HOPS_MAX)]
    events: _Number
    messages: _Number


class Batch(msgspec.Struct, frozen=True):
    """A request over a link: entries, the number of the first one, rows of the topology, and news."""

    version: int
    source: _Name
    identity: _Name
    to: _Name
    routing: str
    first: _Number
    entries: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=BATCH_ENTRIES_MAX)]
    digest: str
    rows: _Rows = ()
    cluster: _Cluster = ""
    loads: Annotated[tuple[LoadRow, ...], msgspec.Meta(max_length=DESTINATIONS_MAX)] = ()
    letters: Annotated[tuple[Letter, ...], msgspec.Meta(max_length=LETTERS_MAX)] = ()
    receipts: Annotated[tuple[Receipt, ...], msgspec.Meta(max_length=RECEIPTS_MAX)] = ()


class Answer(msgspec.Struct, frozen=True):
    """The answer to a batch: entries up to `watermark` are stored."""

    version: int
    source: _Name
    identity: _Name
    watermark: _Number
    digest: str
    rows: _Rows = ()


encoder = msgspec.msgpack.Encoder()
_entry = msgspec.msgpack.Decoder(Entry)
_batch = msgspec.msgpack.Decoder(Batch)
_answer = msgspec.msgpack.Decoder(Answer)
_rows = msgspec.msgpack.Decoder(tuple[Row, ...])


def decode_rows(data: bytes) -> tuple[Row, ...]:
    """Decode stored rows; none for no bytes."""
    return _rows.decode(data) if data else ()


def decode_answer(data: bytes) -> Answer:
    """Decode an answer. Raise ValueError if it is none."""
    try:
        return _answer.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"the answer is not one of a broker: {error}") from None


def decode_entry(data: bytes) -> Entry:
    """Decode an entry; `Lost` for no bytes. Raise ValueError if it is none."""
    if not data:
        return Lost()
    try:
        found: Entry = _entry.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    _check(found)
    return found


def decode_batch(data: bytes) -> tuple[Batch, list[Entry]]:
    """Decode a batch with its entries. Raise HttpProblem 400 for one of no broker of this version."""
    try:
        head: dict[str, Any] = msgspec.msgpack.decode(data, type=dict[str, Any])
        if head.get("version") != VERSION:
            said = f"The neighbour speaks version {head.get('version')!r:.20} of the links' protocol"
            raise HttpProblem(
                400, "link-version", f"{said}, this broker version {VERSION}: update the older one."
            )
        batch = _batch.decode(data)
        return batch, [decode_entry(bytes(each)) for each in batch.entries]
    except (ValueError, RecursionError) as error:
        raise HttpProblem(400, "bad-batch", f"The batch is not valid: {str(error)[:300]}.") from None


def _check(entry: Entry) -> None:
    if isinstance(entry, Lost):
        return
    names = [each.name for each in entry.destinations]
    if len(set(names)) != len(names):
        raise ValueError("the destination list names a broker twice")
    if entry.source in names:
        raise ValueError(f"the entry of {entry.source!r} would come back to it")
    spaces = [entry.space] if isinstance(entry, Events) else []
    if isinstance(entry, Interest):
        spaces = [each.space for each in entry.filters]
    if isinstance(entry, Move) and isinstance(entry.step, Offer):
        spaces = [entry.step.space, entry.step.id]
    for name in (entry.source, *names, *spaces):
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r:.80} is not the name of a broker or a space")
