"""The state of an edge broker's balancer, apart from what is measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.messages import SessionId, State


@dataclass(slots=True)
class Offering:
    """The session that this broker has begun, before anything moves.

    Attributes
    ----------
    action, left
        The entry of the broker-action list that is tried, and those after it.
    is_sampling
        Whether the other broker has accepted.
    """

    session: SessionId
    action: BrokerAction
    left: list[BrokerAction]
    is_sampling: bool = False


@dataclass(slots=True)
class Outgoing:
    """Subscriptions that are leaving; `chosen` are their ids."""

    to: str
    chosen: dict[str, None]


@dataclass(slots=True)
class Accepting:
    """The session in which this broker accepts load; it ends at `until_s` at the latest."""

    session: SessionId
    offloader: str
    until_s: float


@dataclass(slots=True)
class EdgeState:
    """The state of an edge broker's balancer.

    Attributes
    ----------
    life
        Counts starts, so that sessions and timers of an earlier life are told apart.
    """

    name: str
    cluster: str
    head: str
    life: int = 0
    sessions: int = 0
    pies: int = 0
    state: State = State.OK
    stable_from_s: float = 0.0
    is_stabilizing: bool = False
    measured_from_s: float = 0.0
    offering: Offering | None = None
    accepting: Accepting | None = None
    outgoing: dict[SessionId, Outgoing] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        """Whether the broker takes part in a session."""
        return self.offering is not None or self.accepting is not None or bool(self.outgoing)

    def next_session(self) -> SessionId:
        """Return the id of a new session."""
        self.sessions += 1
        return SessionId(self.name, self.life, self.sessions)
