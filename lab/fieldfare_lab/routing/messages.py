"""Messages between brokers, commands of a broker's own clients and runtime, and what it reports.

Ji et al. 2013: an advertisement, a subscription and an event are routed in the same way. Each is the
``content`` of a `Routed`, which names its routing source and its destinations; a `Forward` carries a `Routed`
over one link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fieldfare.routing.messages import LinkRow

CLUSTERS_MAX = 64
"""Maximum clusters on an advertisement's path; a longer path is refused."""

ORIGINS_MAX = 100_000
"""Maximum origins that one subscription message names; a longer one is refused."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Close a session of the link from the source, which is cut, and answer how far it came."""

    session: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The session is closed: entries up to `watermark` were received, later ones are refused."""

    session: int
    watermark: int


@dataclass(frozen=True, slots=True)
class Routed:
    """A content with its routing source and destinations in one cluster.

    Attributes
    ----------
    group
        The cluster (MERC); empty in D-DBR; for FBR, see there.
    source
        The broker that matched it: the origin, or an edge broker that replaced the source.
    stamp
        The source's revision when it was sent.
    """

    group: str
    source: str
    stamp: int
    destinations: tuple[str, ...]
    content: object


@dataclass(frozen=True, slots=True)
class Forward:
    """One entry of a link's outbox.

    Attributes
    ----------
    bitmap
        The destinations, in place of names: see ``destinations``.
    """

    session: int
    number: int
    routed: Routed
    bitmap: bytes | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """Entries up to `number` are stored by the receiver."""

    session: int
    number: int


class Filter(Protocol):
    """A filter, as far as routing needs it."""

    def matches(self, event: Any) -> bool:
        """Return whether an event matches."""

    def intersects(self, other: Any) -> bool:
        """Return False only if no event can match both filters."""

    def covers(self, other: Any) -> bool:
        """Return True only if every event that matches `other` matches this filter."""


@dataclass(frozen=True, slots=True)
class Everything:
    """The filter of an advertisement of any event."""

    def matches(self, event: Any) -> bool:
        return True

    def intersects(self, other: Any) -> bool:
        return True

    def covers(self, other: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record was published, and its identity: kept on every link.

    Attributes
    ----------
    stamp
        The broker's revision when the record was published.
    """

    broker: str
    partition: int
    offset: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Advertise:
    """A broker's clients may publish events that match a filter.

    Attributes
    ----------
    origin, id
        The advertising broker, and the advertisement's name there.
    revision
        The broker's revision; an advertisement is replaced by a newer one only.
    path
        The clusters that it has passed, the present one last.
    """

    origin: str
    id: str
    revision: int
    filter: Filter
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unadvertise:
    """An advertisement is withdrawn; without an `id`, all of them.

    Attributes
    ----------
    is_removed
        The origin was removed for good: messages of its that come later are not processed.
    """

    origin: str
    id: str | None
    revision: int
    path: tuple[str, ...] = ()
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A subscription's version begins at these origins, and ends the one before.

    Attributes
    ----------
    subscriber, id
        The broker to which the subscriber is connected, and the subscription's name there.
    version
        The subscriber's revision when it was made.
    origins
        The origins that are asked through the receiver; empty: each destination, for its own records.
    is_stored
        Whether the receiver needs its filter; False for one that a stored subscription from the same
        sender covers. A version that was sent before may be repeated with another `is_stored`; nothing else
        changes, and no answer follows.
    """

    subscriber: str
    id: str
    version: int
    filter: Filter
    origins: tuple[str, ...]
    is_stored: bool = True


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A subscription ends at these origins; for the attributes see `Subscribe`."""

    subscriber: str
    id: str
    version: int
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """An origin's answer: the version counts for its records from this revision on; older versions below it.

    Attributes
    ----------
    after_stamp, after_count
        The answer is processed once `after_count` records with a source stamp below `after_stamp` have come
        from its source.
    """

    subscriber: str
    id: str
    version: int
    origin: str
    revision: int
    after_stamp: int
    after_count: int


@dataclass(frozen=True, slots=True)
class Publication:
    """A record: its origin, and its event."""

    origin: Origin
    event: Any


Content = Advertise | Unadvertise | Subscribe | Unsubscribe | Accepted | Publication | Settle | Settled


# Between neighbours


@dataclass(frozen=True, slots=True)
class LinkState:
    """Rows of a cluster's link state; all of them when a link comes up."""

    group: str
    rows: tuple[LinkRow, ...]


@dataclass(frozen=True, slots=True)
class LinkDigest:
    """A digest of all rows of a cluster that the sender knows; where it differs, the rows are sent."""

    group: str
    digest: str


# From a broker's own runtime


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link to a neighbour is usable, for these clusters."""

    peer: str
    groups: tuple[str, ...] = ("",)
    latency_ms: float = 1.0


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link to a neighbour is not usable."""

    peer: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A tick of a broker's timer."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Route a record of the local log; one that was routed before is ignored."""

    partition: int
    offset: int
    event: Any


@dataclass(frozen=True, slots=True)
class SetAdvertisement:
    """Advertise a filter, or withdraw the advertisement (`filter` is None)."""

    id: str
    filter: Filter | None


@dataclass(frozen=True, slots=True)
class SetSubscription:
    """Create or replace a local client's subscription, or end it (`filter` is None)."""

    id: str
    filter: Filter | None


@dataclass(frozen=True, slots=True)
class Remove:
    """An operator's command: remove a broker for good, with everything it has subscribed and advertised.

    One broker of each of its clusters gets it; in FBR, each of its neighbours.
    """

    broker: str


# Reports


@dataclass(frozen=True, slots=True)
class Delivered:
    """A record for these local subscriptions: the runtime stores it together with the broker's state."""

    subscriptions: tuple[str, ...]
    publication: Publication


@dataclass(frozen=True, slots=True)
class Counts:
    """A version of a local subscription counts for an origin's records from this revision on.

    Attributes
    ----------
    is_end
        Nothing counts there from this revision on: it was ended, or meets no advertisement of the origin.
    """

    subscription: str
    version: int
    origin: str
    revision: int
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A message or command was not processed."""

    sender: str
    reason: str
