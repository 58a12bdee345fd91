"""The durable state of a balancer that migrates subscriptions: one value, which a runtime stores and loads.

A runtime stores it after each `handle`, then carries out the effects. So a crash is: load the state that was
stored last, and `start`. Loads, PIE messages and sampled vectors are not stored; they are measured again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fieldfare.balancing.messages import SessionId
from fieldfare.balancing.state import Accepting, EdgeState, Outgoing
from fieldfare_lab.balancing.messages import Places, Subscription


@dataclass(slots=True)
class Leaving(Outgoing):
    """Subscriptions that are leaving, from `Move` until the acceptor has noted `Released`.

    Attributes
    ----------
    chosen
        Their ids; they take part in no other session.
    until_s
        When the broker stops telling them to move and cancels.
    joined
        The connected ones with the acceptor's places, once `Done` has come.
    released
        The switch places, once everything before them is delivered.
    """

    until_s: float
    is_current: bool = True
    joined: dict[str, Places] | None = None
    released: dict[str, Places] | None = None


@dataclass(slots=True)
class Joining(Accepting):
    """The session in which this broker accepts load.

    Attributes
    ----------
    total
        N, once a subscriber has connected.
    joined
        The subscribers that have connected, with the places from which on their events come here; None
        while the runtime still attaches them.
    """

    total: int | None = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    joined: dict[str, Places | None] = field(default_factory=dict)


@dataclass(slots=True)
class Incoming:
    """Subscriptions that have connected, until their old broker releases them."""

    offloader: str
    subscriptions: dict[str, Subscription]
    places: dict[str, Places]


@dataclass(slots=True)
class MigratingState(EdgeState):
    """The durable state of an edge broker's balancer.

    Attributes
    ----------
    outgoing
        `Leaving` by session.
    subscriptions
        The subscriptions that this broker delivers to.
    moved_s
        When subscriptions that came in a session arrived.
    """

    accepting: Joining | None = None
    outgoing: dict[SessionId, Any] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    moved_s: dict[str, float] = field(default_factory=dict)
    incoming: dict[SessionId, Incoming] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        """Whether the broker takes part in a session."""
        leaving = any(each.is_current for each in self.outgoing.values())
        return self.offering is not None or self.accepting is not None or leaving

    def leaving(self) -> set[str]:
        """Return the ids of the subscriptions that are in a session already."""
        return {id for each in self.outgoing.values() for id in each.chosen}
