"""Small immutable records that the client hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fieldfare.client.encoding import decode_event
from fieldfare.model import DeliverySettings, Position


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription as the service describes it.

    ``valid_from`` has a position for each partition of the log, mostly one: no event before it meets this
    version of the filter. ``delivery`` says how its messages are given. ``document`` is all that the service
    says: where messages are sent to an address, also how many secrets there are, and, where one subscription
    was asked for, how it stands with that (``push``).
    """

    id: str
    space: str
    filter: str
    dialect: str
    revision: int
    valid_from: tuple[Position, ...]
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """One item of a bulk call; without an id the service invents one.

    ``delivery`` says how its messages are given, if something is to be said of it.
    """

    filter: str
    id: str | None = None
    dialect: str = "sql"
    delivery: DeliverySettings | Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """An event that a pull brought, where it stands in the log, and which time it is given."""

    position: Position
    raw: bytes
    attempt: int = 1

    @property
    def event(self) -> dict[str, Any]:
        """The event, decoded anew at each call."""
        return decode_event(self.raw)


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that was given up: how often it was given, why it was given up, and when.

    ``raw`` is None where retention has taken the event; ``dead_ms`` is in milliseconds since 1970.
    """

    position: Position
    raw: bytes | None
    attempts: int
    reason: str
    dead_ms: int

    @property
    def event(self) -> dict[str, Any] | None:
        """The event, decoded anew at each call."""
        return None if self.raw is None else decode_event(self.raw)


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """An API key as the service describes it, without the key itself; ``space`` is None for the service's."""

    id: str
    space: str | None
    rights: tuple[str, ...]
    note: str
    created_ms: int
    created_by: str


@dataclass(frozen=True, slots=True)
class NewKey:
    """An API key that was just made: ``key`` is what its owner sends."""

    info: KeyInfo
    key: str = field(repr=False)
