"""A link to a neighbour: an outbox and a watermark on each side, exactly once and in order.

    unsent ──▶ sent (numbered) ──Forward──▶ watermark of the receiver
                  ▲───────────────Ack───────────┘

An entry leaves `sent` when the receiver has acknowledged it, which it does after it has stored it. Entries
that were never sent may be taken back and go another way. Of entries that were sent over a link that is now
cut the sender does not know how far they came: the receiver closes the session (`Settle`), names its
watermark and refuses what still arrives; only the entries above the watermark go another way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fieldfare_lab.routing.messages import Ack, Forward, Routed

WINDOW_MAX = 256
"""Maximum entries of a link that are sent and not acknowledged; later ones wait."""


@dataclass(slots=True)
class Link:
    """One broker's side of a link. All but the last five attributes are durable.

    Attributes
    ----------
    session, next_number
        Of the entries that this side sends.
    is_settling
        The other side was asked to close the session.
    received_session, watermark, closed_watermark
        Of the entries that this side has received and stored, and of the session closed last.
    is_up, down_since_s, resend_at_s, settle_at_s, must_ack
        Lost in a crash: a link is down until the runtime reports it.
    """

    peer: str
    groups: tuple[str, ...] = ()
    latency_ms: float = 1.0
    unsent: deque[Routed] = field(default_factory=deque)
    sent: deque[tuple[int, Routed]] = field(default_factory=deque)
    session: int = 1
    next_number: int = 1
    is_settling: bool = False
    received_session: int = 1
    watermark: int = 0
    closed_watermark: int = 0
    is_up: bool = False
    down_since_s: float = 0.0
    resend_at_s: float = 0.0
    settle_at_s: float = 0.0
    must_ack: bool = False

    def transmit(self) -> list[Forward]:
        """Number the next waiting entries, as far as the window allows, and return them for sending."""
        forwards = []
        while self.unsent and len(self.sent) < WINDOW_MAX:
            routed = self.unsent.popleft()
            self.sent.append((self.next_number, routed))
            forwards.append(Forward(self.session, self.next_number, routed))
            self.next_number += 1
        return forwards

    def again(self) -> list[Forward]:
        """Return all entries that are sent and not acknowledged."""
        return [Forward(self.session, number, routed) for number, routed in self.sent]

    def acknowledged(self, ack: Ack) -> bool:
        """Drop the entries that an `Ack` covers; return whether there were any."""
        dropped = False
        while ack.session == self.session and self.sent and self.sent[0][0] <= ack.number:
            self.sent.popleft()
            dropped = True
        return dropped

    def accept(self, forward: Forward) -> bool:
        """Return whether an entry is the next one of the open session, and count it as received."""
        if (forward.session, forward.number) != (self.received_session, self.watermark + 1):
            return False
        self.watermark += 1
        return True

    def close(self, session: int) -> int | None:
        """Close the session of received entries and return its watermark; None for any but the last two.

        For the session that was closed last the answer is repeated.
        """
        if session == self.received_session:
            self.closed_watermark, self.watermark = self.watermark, 0
            self.received_session += 1
        elif session < 1 or session != self.received_session - 1:
            return None
        return self.closed_watermark

    def settled(self, session: int, watermark: int) -> list[Routed] | None:
        """Begin a new session; return the entries that have not arrived, or None if nothing was to be
        settled."""
        if session != self.session or not self.is_settling:
            return None
        rest = [routed for number, routed in self.sent if number > watermark]
        self.sent.clear()
        self.session += 1
        self.next_number = 1
        self.is_settling = False
        return rest
