"""One event as a subscriber hands it to the program."""

from __future__ import annotations

from typing import Any, Protocol

from fieldfare.client.encoding import decode_event
from fieldfare.client.encrypting import PLAINLY, Encryption, open_event
from fieldfare.client.verdict import Verdict
from fieldfare.model import Position


class AckTaker(Protocol):
    """Whoever takes a message's ack: a subscriber, sync or async."""

    def take_ack(self, position: Position) -> None: ...
    def take_verdict(self, position: Position, verdict: Verdict) -> None: ...


class Message:
    """An event that matched.

    Attributes
    ----------
    position : Position
        Where the event stands in the log; its identity.
    attempt : int
        Which time this is that the service gives it, from 1.
    settled : bool
        Whether it was acked, nacked or terminated here.
    """

    __slots__ = ("_encryption", "_event", "_raw", "_taker", "attempt", "position", "settled")

    def __init__(
        self,
        position: Position,
        raw: bytes,
        taker: AckTaker,
        attempt: int = 1,
        encryption: Encryption = PLAINLY,
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
        """The event's JSON as it was published; EncryptionError if it was to be encrypted, and is not."""
        if self._encryption.is_on:
            self._raw, self._encryption = open_event(self._encryption, self.position, self._raw), PLAINLY
        return self._raw

    @property
    def event(self) -> dict[str, Any]:
        """The CloudEvent as a mapping, decoded when it is first asked for."""
        if self._event is None:
            self._event = decode_event(self.raw)
        return self._event

    def ack(self) -> None:
        """Say that the program is done with this message. Returns at once; sent in the background."""
        self._taker.take_ack(self.position)
        self.settled = True

    def nack(self, delay_s: float | None = None) -> None:
        """Ask for this message again. Returns at once; sent in the background.

        Parameters
        ----------
        delay_s
            Seconds until then; by default as the subscription's settings say.
        """
        self._taker.take_verdict(self.position, Verdict("nack", delay_s))
        self.settled = True

    def extend(self, ack_deadline_s: float | None = None) -> None:
        """Have this message for so long from now on. Returns at once; sent in the background."""
        self._taker.take_verdict(self.position, Verdict("extend", ack_deadline_s))

    def terminate(self, reason: str = "") -> None:
        """Give this message up: nobody is given it again. Returns at once; sent in the background."""
        self._taker.take_verdict(self.position, Verdict("terminate", reason))
        self.settled = True

    def __repr__(self) -> str:
        return f"Message({self.position}, {self._raw[:60]!r}{'...' if len(self._raw) > 60 else ''})"
