"""The interface between a client and the encryption of an encrypted space (``encryption.SpaceKey``).

Without a key, events and filters are sent as they are. This module needs neither numpy nor cryptography.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from fieldfare.client.errors import EncryptionError
from fieldfare.client.records import DeadMessage, NewSubscription, PulledMessage, SubscriptionInfo
from fieldfare.model import Position


class Encryption(Protocol):
    """Encrypts and decrypts for a client."""

    @property
    def is_on(self) -> bool:
        """Whether events and filters are encrypted."""

    def declaration(self) -> dict[str, Any] | None:
        """Return the encryption parameters that the service needs to create the space; None without a key."""

    def seal_lines(self, lines: Sequence[bytes]) -> list[bytes]:
        """Encrypt events, each a line of JSON; EncryptionError names the first that cannot be encrypted."""

    def open_line(self, raw: bytes) -> bytes:
        """Decrypt an event; EncryptionError if it was not encrypted with this key."""

    def seal_filter(self, new: NewSubscription) -> NewSubscription:
        """Encrypt the filter of a subscription."""

    def seal_filters(self, new: Iterable[NewSubscription]) -> Iterator[NewSubscription]:
        """Encrypt the filters of many subscriptions, one after the other."""

    def open_filter(self, info: SubscriptionInfo) -> SubscriptionInfo:
        """Decrypt the filter of a subscription."""


TABLE_IS_PLAIN = (
    "tables cannot be encrypted: publish the rows as events, with publish_many or as lines of JSON"
)


def plain_only(encryption: Encryption, why: str) -> None:
    """Raise EncryptionError with the reason ``why`` if encryption is on: for calls that cannot encrypt."""
    if encryption.is_on:
        raise EncryptionError(why)


def open_event(encryption: Encryption, position: Position, raw: bytes) -> bytes:
    """Decrypt the event at a position; EncryptionError names the position."""
    try:
        return encryption.open_line(raw)
    except EncryptionError as error:
        raise EncryptionError(f"the message at {position} cannot be decrypted: {error}") from None


Read = TypeVar("Read", PulledMessage, DeadMessage)


def opened(encryption: Encryption, messages: list[Read]) -> list[Read]:
    """Decrypt messages; one that cannot be decrypted gets the reason as ``unreadable``.

    Any publisher can send an event that is not encrypted with this key, so this is not an error.
    """
    if not encryption.is_on:
        return messages
    return [each if each.raw is None else _opened(encryption, each) for each in messages]


def _opened(encryption: Encryption, message: Read) -> Read:
    try:
        return replace(message, raw=open_event(encryption, message.position, message.raw or b""))
    except EncryptionError as error:
        return replace(message, raw=b"", unreadable=str(error))


class _NoEncryption:
    """No encryption: everything passes unchanged."""

    is_on = False

    def declaration(self) -> None:
        return None

    def seal_lines(self, lines: Sequence[bytes]) -> list[bytes]:
        return list(lines)

    def open_line(self, raw: bytes) -> bytes:
        return raw

    def seal_filter(self, new: NewSubscription) -> NewSubscription:
        return new

    def seal_filters(self, new: Iterable[NewSubscription]) -> Iterator[NewSubscription]:
        return iter(new)

    def open_filter(self, info: SubscriptionInfo) -> SubscriptionInfo:
        return info


NO_ENCRYPTION: Encryption = _NoEncryption()
