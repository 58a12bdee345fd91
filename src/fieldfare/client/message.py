"""One event as a subscriber hands it to the program."""

from __future__ import annotations

from typing import Any, Protocol

from fieldfare.client.encoding import decode_event
from fieldfare.model import Position


class AckTaker(Protocol):
    """Whoever takes a message's ack: a subscriber, sync or async."""

    def take_ack(self, position: Position) -> None: ...
    def take_nack(self, position: Position) -> None: ...


class Message:
    """An event that matched.

    Attributes
    ----------
    position : Position
        Where the event stands in the log; its identity.
    raw : bytes
        The event's JSON as it was published.
    """

    __slots__ = ("_event", "_taker", "position", "raw")

    def __init__(self, position: Position, raw: bytes, taker: AckTaker) -> None:
        self.position = position
        self.raw = raw
        self._taker = taker
        self._event: dict[str, Any] | None = None

    @property
    def event(self) -> dict[str, Any]:
        """The CloudEvent as a mapping, decoded when it is first asked for."""
        if self._event is None:
            self._event = decode_event(self.raw)
        return self._event

    def ack(self) -> None:
        """Say that the program is done with this message. Returns at once; sent in the background."""
        self._taker.take_ack(self.position)

    def nack(self) -> None:
        """Ask for this message again. Returns at once; sent in the background."""
        self._taker.take_nack(self.position)

    def __repr__(self) -> str:
        return f"Message({self.position}, {self.raw[:60]!r}{'...' if len(self.raw) > 60 else ''})"
