"""What a client does with events and filters before they leave it, and when they come back.

By itself nothing; with a key of an encrypted space (``encryption.SpaceKey``) it encrypts and decrypts. This
module needs neither numpy nor cryptography.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from fieldfare.client.errors import EncryptionError
from fieldfare.client.records import DeadMessage, NewSubscription, PulledMessage, SubscriptionInfo
from fieldfare.model import Position


class Encryption(Protocol):
    """Who encrypts for a client."""

    @property
    def is_on(self) -> bool:
        """Whether anything is encrypted."""

    def declaration(self) -> dict[str, Any] | None:
        """What the service is told of a space."""

    def seal_lines(self, lines: Sequence[bytes]) -> list[bytes]:
        """Events, each a line of JSON, as they are sent; EncryptionError names the first that cannot be."""

    def open_line(self, raw: bytes) -> bytes:
        """An event as it was published; EncryptionError if it was not encrypted with this key."""

    def seal_filter(self, new: NewSubscription) -> NewSubscription:
        """A subscription as it is sent."""

    def seal_filters(self, new: Iterable[NewSubscription]) -> Iterator[NewSubscription]:
        """The same for many."""

    def open_filter(self, info: SubscriptionInfo) -> SubscriptionInfo:
        """A subscription as it was asked for."""


TABLE_IS_PLAIN = (
    "a table would go out plain: publish its rows as events, with publish_many or as lines of JSON"
)


def plain_only(encryption: Encryption, why: str) -> None:
    """EncryptionError, with the reason, where what is to be sent would go out plain."""
    if encryption.is_on:
        raise EncryptionError(why)


def open_event(encryption: Encryption, position: Position, raw: bytes) -> bytes:
    """The event at a position as it was published; EncryptionError names the position."""
    try:
        return encryption.open_line(raw)
    except EncryptionError as error:
        raise EncryptionError(f"the message at {position} cannot be read: {error}") from None


Read = TypeVar("Read", PulledMessage, DeadMessage)


def opened(encryption: Encryption, messages: list[Read]) -> list[Read]:
    """Messages as they were published; one that cannot be read says why, and the others are there.

    Whoever may publish may send what nobody can decrypt.
    """
    if not encryption.is_on:
        return messages
    return [each if each.raw is None else _opened(encryption, each) for each in messages]


def _opened(encryption: Encryption, message: Read) -> Read:
    try:
        return replace(message, raw=open_event(encryption, message.position, message.raw or b""))
    except EncryptionError as error:
        return replace(message, raw=b"", unreadable=str(error))


class _Plainly:
    """Encrypts nothing."""

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


PLAINLY: Encryption = _Plainly()
