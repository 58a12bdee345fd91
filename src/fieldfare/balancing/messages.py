"""Messages between brokers, questions to the runtime, and its answers.

All of them go before events (section 3.2): a runtime sends them with priority. The messages with which the
paper's brokers migrate subscribers are in `lab/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.load import UNIT, Capacity, Load, Metric, Metrics, Resource
from fieldfare.balancing.plans import Moved


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


# Mediating sessions


@dataclass(frozen=True, slots=True)
class Request:
    """Begin a session; between heads a global one, with `targets` for both clusters."""

    session: SessionId
    brokers: tuple[str, ...] = ()
    targets: Targets = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """The state before the request; if OK, the sender is BUSY now, and its load and CSS are added."""

    session: SessionId
    state: State
    load: Load | None = None
    css: tuple[Any, ...] = ()
    brokers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """The offloading broker ends a session."""

    session: SessionId


# Inputs from a broker's own runtime


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
