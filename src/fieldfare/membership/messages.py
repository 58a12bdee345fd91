"""What matchers and dispatchers say to each other besides gossip, ask for, and tell."""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare.membership.table import MatcherRow, Span


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """A subscription as membership sees it: its number, and its spans on each dimension.

    The filter itself travels with it in a runtime; what decides where it is kept are the spans.
    """

    number: int
    spans: tuple[tuple[Span, ...], ...]


# Joining, leaving, taking over


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """To any dispatcher: give me something to do."""

    matcher: str


@dataclass(frozen=True, slots=True)
class Split:
    """From a dispatcher to the heaviest matcher: give half of your segments to a new one."""

    joining: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Spans, for some dimensions, with all subscriptions that overlap them.

    `number` counts the giver's hand-overs: one that comes twice or late is not taken in again. `rows` is
    the giver's whole table, as only whole tables may be passed on; from it a joining matcher learns whom
    it is with.
    """

    number: int
    spans: tuple[Span | None, ...]
    subscriptions: tuple[tuple[StoredSubscription, ...], ...]
    rows: tuple[MatcherRow, ...]


@dataclass(frozen=True, slots=True)
class HandOverDone:
    """The subscriptions of a hand-over are here. `rows` is the receiver's whole table."""

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
    """It is stored, for as much as `span`: what the matcher owns on this dimension."""

    dimension: int
    number: int
    span: Span


@dataclass(frozen=True, slots=True)
class LoadMessage:
    """How busy a matcher is, in any unit that is the same for all: from its runtime, and to dispatchers."""

    load: float


# Inputs from a machine's own runtime


@dataclass(frozen=True, slots=True)
class Beat:
    """It is time to look around: what its timers bring to a matcher and to a dispatcher."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The matcher shall hand over everything and go."""


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


# What they ask for and tell


@dataclass(frozen=True, slots=True)
class Restore:
    """Read the subscriptions that overlap a span from the snapshot; the answer is `Restored`."""

    dimension: int
    span: Span


@dataclass(frozen=True, slots=True)
class Confirmed:
    """From a dispatcher: the subscription is stored wherever an event may ask for it."""

    number: int
