"""A delivered message: an event with its position, attempt number, and methods to settle it."""

from __future__ import annotations

from typing import Any, Protocol

from fieldfare.client.encoding import decode_event
from fieldfare.client.encrypting import NO_ENCRYPTION, Encryption, open_event
from fieldfare.client.verdict import Verdict
from fieldfare.model import Position


class AckTaker(Protocol):
    """The receiver of a message's acks: a synchronous or asyncio subscriber."""

    def take_ack(self, position: Position) -> None: ...
    def take_verdict(self, position: Position, verdict: Verdict) -> None: ...


class Message:
    """A delivered message: an event that matched the subscription's filter.

    Attributes
    ----------
    position : Position
        The event's position in the log, which identifies it.
    attempt : int
        The number of this delivery attempt, from 1.
    settled : bool
        Whether this program has acked, nacked or terminated the message.
    """

    __slots__ = ("_encryption", "_event", "_raw", "_taker", "attempt", "position", "settled")

    def __init__(
        self,
        position: Position,
        raw: bytes,
        taker: AckTaker,
        attempt: int = 1,
        encryption: Encryption = NO_ENCRYPTION,
    ) -> None:
        self.position = position
        self.attempt = attempt
        self._raw = raw
        self._encryption = encryption
        self._taker = taker
        self._event: dict[str, Any] | None = None
        self.settled = False

    @property
    def raw(self) -> bytes:
        """The event's JSON as it was published; EncryptionError if it cannot be decrypted with the key."""
        if self._encryption.is_on:
            self._raw, self._encryption = (
                open_event(self._encryption, self.position, self._raw),
                NO_ENCRYPTION,
            )
        return self._raw

    @property
    def event(self) -> dict[str, Any]:
        """The CloudEvent as a mapping; decoded at the first access."""
        if self._event is None:
            self._event = decode_event(self.raw)
        return self._event

    def ack(self) -> None:
        """Acknowledge this message: it is not redelivered. Returns at once; sent in the background."""
        self._taker.take_ack(self.position)
        self.settled = True

    def nack(self, delay_s: float | None = None) -> None:
        """Have this message redelivered. Returns at once; sent in the background.

        Parameters
        ----------
        delay_s
            Seconds until the redelivery; default: the subscription's setting.
        """
        self._taker.take_verdict(self.position, Verdict("nack", delay_s))
        self.settled = True

    def extend(self, ack_deadline_s: float | None = None) -> None:
        """Extend the ack deadline of this message. Returns at once; sent in the background.

        Parameters
        ----------
        ack_deadline_s
            The new deadline, in seconds from now; default: the subscription's setting, else the service's.
        """
        self._taker.take_verdict(self.position, Verdict("extend", ack_deadline_s))

    def terminate(self, reason: str = "") -> None:
        """Make this message a dead letter, with a reason: it is not redelivered.

        Returns at once; sent in the background.
        """
        self._taker.take_verdict(self.position, Verdict("terminate", reason))
        self.settled = True

    def __repr__(self) -> str:
        return f"Message({self.position}, {self._raw[:60]!r}{'...' if len(self._raw) > 60 else ''})"
