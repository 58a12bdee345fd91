"""Small immutable records that the client hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fieldfare.client.encoding import decode_event
from fieldfare.client.errors import EncryptionError
from fieldfare.model import DeliverySettings, Position


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription as the service describes it.

    ``valid_from`` has a position for each partition of the log, mostly one: no event before it meets this
    version of the filter. ``delivery`` says how its messages are given, ``start`` where it began, if it was
    created with a start, and ``past`` how far what lies before its creation is matched: of that only
    `get_subscription` tells. ``document`` is all that the service says: where messages are sent to an
    address, also how many secrets there are, and, where one subscription was asked for, how it stands with
    that (``push``).
    """

    id: str
    space: str
    filter: str
    dialect: str
    revision: int
    valid_from: tuple[Position, ...]
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    start: tuple[Position, ...] | None = None
    past: PastInfo | None = None
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class PastInfo:
    """How far the past of a subscription is matched, see `SubscriptionInfo`: positions of each partition.

    What lies from ``kept_from`` to ``matched_to`` is, what lies from there to ``to`` is yet to be;
    ``kept_from`` is later than the start where retention has taken events.
    """

    kept_from: tuple[Position, ...]
    matched_to: tuple[Position, ...]
    to: tuple[Position, ...]
    is_matched: bool


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """One item of a bulk call; without an id the service invents one.

    ``delivery`` says how its messages are given, if something is to be said of it. ``start`` is no member of
    bulk calls.
    """

    filter: str
    id: str | None = None
    dialect: str = "sql"
    delivery: DeliverySettings | Mapping[str, Any] | None = None
    start: str | Position | None = None


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """An event that a pull brought, where it stands in the log, and which time it is given.

    ``unreadable`` says why one of an encrypted space cannot be decrypted: then ``raw`` is empty, and
    ``event`` raises EncryptionError. It can be acked or terminated as any.
    """

    position: Position
    raw: bytes
    attempt: int = 1
    unreadable: str = ""

    @property
    def event(self) -> dict[str, Any]:
        """The event, decoded anew at each call."""
        return _decoded(self.raw, self.unreadable)


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that was given up: how often it was given, why it was given up, and when.

    ``raw`` is None where retention has taken the event; ``dead_ms`` is in milliseconds since 1970.
    ``unreadable`` as in `PulledMessage`.
    """

    position: Position
    raw: bytes | None
    attempts: int
    reason: str
    dead_ms: int
    unreadable: str = ""

    @property
    def event(self) -> dict[str, Any] | None:
        """The event, decoded anew at each call."""
        return None if self.raw is None else _decoded(self.raw, self.unreadable)


def _decoded(raw: bytes, unreadable: str) -> dict[str, Any]:
    if unreadable:
        raise EncryptionError(unreadable)
    return decode_event(raw)


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
