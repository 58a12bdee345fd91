"""The thin layer of a subscriber's client that follows its subscription to another broker (section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from fieldfare.balancing.messages import SessionId
from fieldfare.effects import Effect, Send, Tell, Timer, source
from fieldfare_lab.balancing.messages import Join, Joined, Move

TRIES_MAX = 5
"""How often `Join` is sent for one `Move`; the old broker repeats `Move` while the session lasts."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The new broker has the subscription."""

    id: str
    broker: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Send `Join` again if it is unanswered."""

    session: SessionId
    id: str
    tries: int


@dataclass(slots=True)
class Subscriber:
    """Joins the load-accepting broker when told to move.

    Attributes
    ----------
    retry_s
        Time after which an unanswered `Join` is sent again.
    """

    name: str
    retry_s: float = 2.0
    _moves: dict[tuple[SessionId, str], Move] = field(default_factory=dict)

    def start(self, now: float) -> list[Effect]:
        """Start; the state is not stored: a broker that is unanswered repeats its message."""
        return []

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a message of a broker, or of its own timer."""
        sender, inner = source(self.name, message)
        if isinstance(inner, Move):
            key = inner.session, inner.subscription.id
            if key in self._moves:
                return []
            self._moves[key] = inner
            return self._join(inner, 1, now)
        if isinstance(inner, Retry):
            move = self._moves.get((inner.session, inner.id))
            if move is not None and inner.tries < TRIES_MAX:
                return self._join(move, inner.tries + 1, now)
            self._moves.pop((inner.session, inner.id), None)
            return []
        if isinstance(inner, Joined):
            move = self._moves.pop((inner.session, inner.id), None)
            if move is not None and inner.is_accepted:
                return [Tell(Connected(inner.id, sender))]
        return []

    def _join(self, move: Move, tries: int, now: float) -> list[Effect]:
        id = move.subscription.id
        return [
            Send(move.to, Join(move.session, move.subscription, move.total)),
            Timer(now + self.retry_s, Retry(move.session, id, tries)),
        ]
