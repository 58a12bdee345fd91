"""Immutable records that the client's methods return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fieldfare.client.encoding import decode_event
from fieldfare.client.errors import EncryptionError, Refusal
from fieldfare.model import DeliverySettings, Position, SubscriptionBacklog


@dataclass(frozen=True, slots=True)
class FilterWarning:
    """A warning about a filter that is valid but probably a mistake, such as a forgotten ``data.``.

    ``id`` is the subscription's id, in the answer to a bulk call.
    """

    detail: str
    hint: str | None = None
    id: str | None = None

    def __str__(self) -> str:
        name = f"subscription {self.id}: " if self.id else ""
        return f"{name}{self.detail}" + (f" (hint: {self.hint})" if self.hint else "")


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription as the service describes it.

    Attributes
    ----------
    valid_from
        A position for each partition of the log (usually one): this version of the filter matches no event
        before it.
    delivery
        The delivery settings.
    start
        Where the subscription began, if it was created with a start.
    past
        The progress of the replay of events from before its creation; only from `get_subscription`.
    document
        The complete answer of the service. For a subscription with a push address it also has the number of
        secrets and, from `get_subscription`, the state of the address (``push``).
    warnings
        Probable mistakes in the filter; only in the answer that stored it.
    owner, labels
        The responsible team or person, None if there is none; and the labels by key.
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
    warnings: tuple[FilterWarning, ...] = field(default=(), compare=False)
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def sites(self) -> Mapping[str, bool]:
        """By name of each other site whether the subscription counts for what it publishes from now on.

        Empty if the service has no other sites, and in lists.
        """
        return dict(self.document.get("sites", {}))

    @property
    def backlog(self) -> SubscriptionBacklog | None:
        """The backlog; only from ``subscriptions(sort="backlog")``, else None."""
        found = self.document.get("backlog")
        if found is None:
            return None
        return SubscriptionBacklog(**{each.name: found[each.name] for each in fields(SubscriptionBacklog)})


@dataclass(frozen=True, slots=True)
class BulkStored:
    """The outcome of one bulk request: how many subscriptions were stored, and which were refused."""

    stored: int
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[FilterWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class PastInfo:
    """The progress of a subscription's replay, see `SubscriptionInfo`: a position for each partition.

    Events from ``kept_from`` to ``matched_to`` have been matched, those from ``matched_to`` to ``to`` have
    not; ``kept_from`` is later than the start if retention has removed events.
    """

    kept_from: tuple[Position, ...]
    matched_to: tuple[Position, ...]
    to: tuple[Position, ...]
    is_matched: bool


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """A subscription to create; without an id the service generates one.

    ``delivery`` has delivery settings, None for the defaults. ``start`` is not allowed in bulk calls. An
    existing subscription keeps its delivery settings, owner and labels where these are None.
    """

    filter: str
    id: str | None = None
    dialect: str = "sql"
    delivery: DeliverySettings | Mapping[str, Any] | None = None
    start: str | Position | None = None
    owner: str | None = None
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """A pulled message: the event, its position in the log, and the number of the delivery attempt.

    ``unreadable`` is the reason why an event of an encrypted space cannot be decrypted: then ``raw`` is empty
    and ``event`` raises EncryptionError. Such a message can be acked or terminated like any other.
    """

    position: Position
    raw: bytes
    attempt: int = 1
    unreadable: str = ""

    @property
    def event(self) -> dict[str, Any]:
        """The event, decoded at each access."""
        return _decoded(self.raw, self.unreadable)


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A dead letter: a message with its delivery attempts, and why and when it was given up.

    ``raw`` is None if retention has removed the event; ``dead_ms`` is in milliseconds since 1970.
    ``unreadable`` is as in `PulledMessage`.
    """

    position: Position
    raw: bytes | None
    attempts: int
    reason: str
    dead_ms: int
    unreadable: str = ""

    @property
    def event(self) -> dict[str, Any] | None:
        """The event, decoded at each access."""
        return None if self.raw is None else _decoded(self.raw, self.unreadable)


def _decoded(raw: bytes, unreadable: str) -> dict[str, Any]:
    if unreadable:
        raise EncryptionError(unreadable)
    return decode_event(raw)


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """An API key's description, without the secret; ``space`` is None for a key of the whole service."""

    id: str
    space: str | None
    rights: tuple[str, ...]
    note: str
    created_ms: int
    created_by: str


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new API key; ``key`` is the secret that its owner sends."""

    info: KeyInfo
    key: str = field(repr=False)
