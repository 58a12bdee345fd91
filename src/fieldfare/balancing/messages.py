"""Messages between brokers and subscribers, questions to the runtime, and its answers.

All of them go before events (section 3.2): a runtime sends them with priority.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.load import UNIT, Capacity, Load, Metric, Metrics, Resource
from fieldfare.balancing.plans import Moved
from fieldfare.balancing.poset import Region
from fieldfare.balancing.press import Profile

Places = Mapping[str, int]
"""By origin, the offset of a record: an event belongs to the one side below it, to the other from it on."""


class State(StrEnum):
    """The load balancing state of a broker or a cluster (section 3.2)."""

    OK = "OK"
    BUSY = "BUSY"
    NOT_AVAILABLE = "N/A"
    STABILIZING = "STABILIZING"


@dataclass(frozen=True, slots=True)
class SessionId:
    """A session: who began it, in which life, and the number in that life."""

    offloader: str
    life: int
    number: int

    def __str__(self) -> str:
        return f"{self.offloader}/{self.life}.{self.number}"


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


# PIE, Padres Information Exchange


Targets = tuple[tuple[str, Metrics], ...]
"""Metrics by cluster."""


@dataclass(frozen=True, slots=True)
class Pie:
    """A local PIE message of an edge broker; it is published to its cluster-head.

    Attributes
    ----------
    number
        Increases with each message of a broker: an older one that arrives later is ignored.
    balanced
        The edge brokers to which it has nothing to offload.
    capacity
        Not in the paper.
    """

    broker: str
    cluster: str
    number: int
    metrics: Metrics
    state: State
    balanced: frozenset[str]
    capacity: Capacity = UNIT


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


# Mediating sessions


@dataclass(frozen=True, slots=True)
class Request:
    """Begin a session; between heads a global one, with `targets` for both clusters (see `Watch`)."""

    session: SessionId
    brokers: tuple[str, ...] = ()
    targets: Targets = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """The state before the request; if OK, the sender is BUSY now, and its load and CSS are added."""

    session: SessionId
    state: State
    load: Load | None = None
    css: tuple[Region, ...] = ()
    brokers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """The offloading broker ends a session; the answer is `Done`."""

    session: SessionId


# Mediating migration


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


# Inputs from a broker's own runtime


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription was made here."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A subscription was removed here by its subscriber."""

    id: str


@dataclass(frozen=True, slots=True)
class Shifted:
    """Subscriptions have come or left, in a session or not: loads measured before are invalid."""


@dataclass(frozen=True, slots=True)
class Drained:
    """An operator moves everything away: the broker is N/A until its next start, and begins no session.

    Or, with `is_over`, the operator has decided otherwise.
    """

    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Measure the load, publish it, and run the detection; of an earlier life it is ignored."""

    life: int


@dataclass(frozen=True, slots=True)
class Again:
    """Repeat what a session still waits for."""

    session: SessionId
    step: str
    life: int


# Questions to the runtime, and the answers


@dataclass(frozen=True, slots=True)
class MeasureLoad:
    """Measure the load, over no more than the time since `since_s`. Answer: `Load`."""

    since_s: float


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


# The same of a runtime that knows the subscriptions and moves them by itself (`delegating`)


@dataclass(frozen=True, slots=True)
class Choose:
    """Choose subscriptions for a broker that accepts load. Answer: `Chosen`.

    Attributes
    ----------
    theirs
        The other broker's load.
    targets
        The metrics that both brokers are to have.
    since_s
        Loads and matches from before this time are ignored.
    count_max
        Maximum number of subscriptions.
    """

    session: SessionId
    action: BrokerAction
    theirs: Load
    targets: tuple[Metrics, Metrics]
    since_s: float
    count_max: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The ids of the subscriptions to move, and both loads now and as estimated."""

    session: SessionId
    ids: tuple[str, ...]
    before: tuple[Load, Load]
    after: tuple[Load, Load]


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move subscriptions to another broker. Answer, at the latest after `timeout_s`: `Migrated`."""

    session: SessionId
    to: str
    ids: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Migrated:
    """The other broker has taken `moved` of the subscriptions; the others stay."""

    session: SessionId
    moved: int


# News for the runtime


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


@dataclass(frozen=True, slots=True)
class Decided:
    """An offload algorithm has chosen.

    Attributes
    ----------
    before, after
        Loads of the two brokers when it began, and as estimated.
    """

    session: SessionId
    to: str
    metric: Metric
    overloaded: Resource | None
    moved: tuple[Moved, ...]
    before: tuple[Load, Load]
    after: tuple[Load, Load]


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The load balancing state has changed."""

    before: State
    after: State


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session has ended at this broker; `moved` subscriptions were handed over."""

    session: SessionId
    moved: int
