"""Messages between matchers and dispatchers (besides gossip), requests to the runtime, and reports."""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare_lab.membership.table import MatcherRow, Span


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """A subscription in membership: its number, and its spans on each dimension.

    A runtime sends the filter itself along; only the spans determine where it is stored.
    """

    number: int
    spans: tuple[tuple[Span, ...], ...]


# Joining, leaving, taking over


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """To any dispatcher: request to be given spans."""

    matcher: str


@dataclass(frozen=True, slots=True)
class Split:
    """From a dispatcher to the heaviest matcher: give half of your segments to a new one."""

    joining: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Spans, for some dimensions, with all subscriptions that overlap them.

    `number` counts the giver's hand-overs: a duplicate or late one is not processed again. `rows` is the
    giver's complete table, as only complete tables may be passed on; a joining matcher learns the other
    matchers from it.
    """

    number: int
    spans: tuple[Span | None, ...]
    subscriptions: tuple[tuple[StoredSubscription, ...], ...]
    rows: tuple[MatcherRow, ...]


@dataclass(frozen=True, slots=True)
class HandOverDone:
    """The subscriptions of a hand-over are stored; `rows` is the receiver's complete table."""

    number: int
    rows: tuple[MatcherRow, ...]


# Subscribing


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Store a subscription along a dimension."""

    dimension: int
    subscription: StoredSubscription


@dataclass(frozen=True, slots=True)
class SubscribeDone:
    """The subscription is stored for `span`: the matcher's span on this dimension."""

    dimension: int
    number: int
    span: Span


@dataclass(frozen=True, slots=True)
class LoadMessage:
    """A matcher's load, in a unit common to all matchers: from its runtime, and to dispatchers."""

    load: float


# Inputs from a machine's own runtime


@dataclass(frozen=True, slots=True)
class Beat:
    """A tick of a matcher's or dispatcher's timer."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Request that a matcher hands over everything and stops."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """To a dispatcher: this matcher does not answer."""

    matcher: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The answer to `Restore`: every subscription in the registry that overlaps the span."""

    dimension: int
    span: Span
    subscriptions: tuple[StoredSubscription, ...]


# Requests to the runtime, and reports


@dataclass(frozen=True, slots=True)
class Restore:
    """Read the subscriptions that overlap a span from the snapshot; the answer is `Restored`."""

    dimension: int
    span: Span


@dataclass(frozen=True, slots=True)
class Confirmed:
    """From a dispatcher: the subscription is stored wherever an event may need it."""

    number: int
