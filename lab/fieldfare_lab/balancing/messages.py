"""Messages with which subscriptions migrate: between brokers and subscribers, and to and from the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fieldfare.balancing.messages import SessionId, Targets
from fieldfare.balancing.press import Profile
from fieldfare_lab.balancing.poset import Region

Places = Mapping[str, int]
"""By origin, the offset of a record: an event belongs to the one side below it, to the other from it on."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription at an edge broker.

    Attributes
    ----------
    client
        The machine of the subscriber.
    is_pinned
        Whether it must not move.
    """

    id: str
    client: str
    region: Region
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """From a head to its edge brokers: balance with these brokers of another cluster, too; none ends it.

    Attributes
    ----------
    targets
        The metrics that brokers of both clusters are to have, by cluster. Not in the paper: none.
    """

    cluster: str
    brokers: tuple[str, ...]
    targets: Targets = ()


@dataclass(frozen=True, slots=True)
class Move:
    """To a subscriber: subscribe to the load-accepting broker, with the session and the number N."""

    session: SessionId
    subscription: Subscription
    to: str
    total: int


@dataclass(frozen=True, slots=True)
class Join:
    """From a subscriber: the subscription for the load-accepting broker."""

    session: SessionId
    subscription: Subscription
    total: int


@dataclass(frozen=True, slots=True)
class Joined:
    """To a subscriber: connected, or refused because the session is over."""

    session: SessionId
    id: str
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class Done:
    """The session is over; these have connected, with the places from which on the acceptor has events."""

    session: SessionId
    joined: Mapping[str, Places]


@dataclass(frozen=True, slots=True)
class Released:
    """All events before these switch places are delivered and acknowledged here; the rest is the acceptor's.

    A subscription of `Done` that is missing here stays at the offloading broker.
    """

    session: SessionId
    places: Mapping[str, Places]


@dataclass(frozen=True, slots=True)
class ReleaseNoted:
    """The acceptor delivers from the switch places on."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription was made here."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A subscription was removed here by its subscriber."""

    id: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Subscribe locally to the acceptor's CSS and sample (PRESS). Answer: `Sampled`.

    Attributes
    ----------
    keys
        The unique subscriptions to profile.
    since_s
        The log is read from here on: since the broker's last session, its load is another one.
    """

    session: SessionId
    keys: tuple[object, ...]
    css: tuple[Region, ...]
    samples: int
    timeout_s: float
    from_log: bool
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampling has ended."""

    session: SessionId
    profile: Profile


@dataclass(frozen=True, slots=True)
class Attach:
    """Have the events of a subscription come here, and keep them until `Open`. Answer: `Attached`.

    At a start, a runtime drops attachments that the stored state does not name.
    """

    session: SessionId
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class Attached:
    """Events of each origin come here from these places on."""

    session: SessionId
    id: str
    places: Places


@dataclass(frozen=True, slots=True)
class Detach:
    """Deliver up to switch places, none below those given, and stop. Answer: `Detached`.

    The runtime chooses the places: the first records of each origin that have not arrived yet, or the given
    ones. It answers when everything before them is delivered and acknowledged: the wait for input queue,
    matching and output queue of the paper.
    """

    session: SessionId
    places: Mapping[str, Places]


@dataclass(frozen=True, slots=True)
class Detached:
    """The subscriptions have left, at these switch places."""

    session: SessionId
    places: Mapping[str, Places]


@dataclass(frozen=True, slots=True)
class Open:
    """Deliver a subscription's events from the switch places on; drop kept ones before them."""

    session: SessionId
    id: str
    places: Places


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove a subscription that was attached in a session and stays at its old broker."""

    session: SessionId
    id: str
