"""Small immutable records that the client hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fieldfare.client.encoding import decode_event
from fieldfare.model import Position


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription as the service describes it.

    ``valid_from`` has a position for each partition of the log, mostly one: no event before it meets this
    version of the filter.
    """

    id: str
    space: str
    filter: str
    dialect: str
    revision: int
    valid_from: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """One item of a bulk call; without an id the service invents one."""

    filter: str
    id: str | None = None
    dialect: str = "sql"


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """An event that a pull brought, and where it stands in the log."""

    position: Position
    raw: bytes

    @property
    def event(self) -> dict[str, Any]:
        """The event, decoded anew at each call."""
        return decode_event(self.raw)


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
