"""The local mediator of the offloading broker, whose runtime knows the subscriptions and moves them exactly.

    Request ──▶ Reply OK ──▶ Choose ──▶ Migrate ──▶ Cancel: the session is over at both
       │ another state, or silence: the next entry of the broker-action list

A service has too many subscriptions for a second set of them here, and a protocol of its own that moves each
one exactly, through kills and cuts. So this mediator only decides when, to whom and how many: what is asked
of other brokers are their loads, which count as far as they can be true (`claims`), and **no broker's word
moves more than the settings allow**, in one session and in each minute. It stores nothing: after a crash a
session is over, and what it began to move goes on. The paper's mediator, which samples and migrates
subscribers by itself (section 3.3), is in `lab/`.
"""

from __future__ import annotations

import math
from collections import deque

from fieldfare.balancing.claims import Claims
from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.load import Load, Metrics
from fieldfare.balancing.messages import (
    Again,
    Cancel,
    Choose,
    Chosen,
    Decided,
    Migrate,
    Migrated,
    Pie,
    Reply,
    Request,
    SessionEnded,
    SessionId,
    State,
)
from fieldfare.balancing.plans import Moved
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.balancing.state import EdgeState, Offering, Outgoing
from fieldfare.effects import Ask, Effect, Send, Tell, Timer

MINUTE_S = 60.0


class Offloader:
    """Sessions in which this broker gives load away, and its runtime chooses and moves it."""

    def __init__(self, state: EdgeState, settings: BalancingSettings) -> None:
        self._state = state
        self._settings = settings
        self._load: Load | None = None
        self._claims = Claims(settings)
        self._loads: dict[SessionId, tuple[BrokerAction, tuple[Load, Load, Load]]] = {}
        self._begun: deque[tuple[float, int]] = deque()
        """When moves began in the last minute, and how many."""
        self.fruitless: BrokerAction | None = None
        """The action of the last session that found nothing to move; taken by the detection."""
        self.targets: dict[str, Metrics] = {}
        """The metrics that each broker is to have; set by the detection."""
        self.is_refused = False
        """Whether every broker of the last list refused; taken by the detection."""

    def begin(self, actions: list[BrokerAction], load: Load, now: float) -> list[Effect]:
        """Ask the first broker of a broker-action list."""
        session = self._state.next_session()
        self._load = load
        self._state.offering = Offering(session, actions[0], actions[1:])
        return [
            Send(actions[0].broker, Request(session)),
            self._again(session, "reply", now + self._settings.reply_s),
        ]

    def replied(self, sender: str, reply: Reply, now: float) -> list[Effect]:
        """Ask what is to move, or ask the next broker."""
        offering = self._state.offering
        is_asked = offering is not None and offering.session == reply.session and not offering.is_sampling
        if offering is None or not is_asked or sender != offering.action.broker:
            return []
        if reply.state is not State.OK or reply.load is None:
            return self._next(offering, now)
        offering.is_sampling = True
        return [Ask(self._question(offering, reply, now))]

    def _question(self, offering: Offering, reply: Reply, now: float) -> object:
        """Return the question whose answer says what is to move."""
        assert reply.load is not None
        self._claims.accepted(offering.action.broker)
        targets = self.targets[self._state.name], self.targets[offering.action.broker]
        count_max = int(min(self.allowance(now), 1 << 62))
        since_s = self._state.measured_from_s
        return Choose(offering.session, offering.action, reply.load, targets, since_s, count_max)

    def failed(self, question: object, now: float) -> list[Effect]:
        """End a session whose subscriptions cannot be chosen or moved."""
        if isinstance(question, Migrate):
            return self.migrated(Migrated(question.session, 0), now)
        offering = self._state.offering
        if offering is None or getattr(question, "session", None) != offering.session:
            return []
        self.is_refused = True  # Not again at once: the reason may last.
        return self._withdraw(offering)

    def _withdraw(self, offering: Offering) -> list[Effect]:
        return [Send(offering.action.broker, Cancel(offering.session)), *self._end(offering.session)]

    def believed(self, pie: Pie, now: float) -> Pie:
        """Return a PIE message of another broker as far as it counts."""
        return self._claims.view(pie, now)

    def allowance(self, now: float) -> float:
        """Return the number of subscriptions that a session may move now."""
        while self._begun and self._begun[0][0] <= now - MINUTE_S:
            self._begun.popleft()
        per_min = self._settings.moves_per_min or math.inf
        left = per_min - sum(number for _, number in self._begun)
        return max(0.0, min(self._settings.session_moves_max or math.inf, left))

    def _next(self, offering: Offering, now: float) -> list[Effect]:
        self._claims.refused(offering.action.broker, now)
        left = [each for each in offering.left if each.broker != offering.action.broker]
        if left and self._load is not None:
            return self.begin(left, self._load, now)
        self.is_refused = True
        return self._end(offering.session)

    def gives_way_to(self, sender: str) -> bool:
        """Return whether this broker's request crosses one of the broker that it asks, which goes first."""
        offering = self._state.offering
        if offering is None or offering.is_sampling:
            return False
        return offering.action.broker == sender and sender < self._state.name

    def give_way(self) -> list[Effect]:
        """Withdraw a request that is not answered."""
        offering = self._state.offering
        return [] if offering is None else self._end(offering.session)

    def _end(self, session: SessionId, moved: int = 0) -> list[Effect]:
        self._state.offering = None
        return [Tell(SessionEnded(session, moved))]

    def chosen(self, answer: Chosen, now: float) -> list[Effect]:
        """Have the chosen subscriptions moved."""
        offering = self._state.offering
        if offering is None or offering.session != answer.session:
            return []
        action = offering.action
        ids = answer.ids[: int(min(self.allowance(now), len(answer.ids)))]
        news = Decided(
            answer.session,
            action.broker,
            action.metric,
            action.overloaded,
            tuple([Moved(id, 1) for id in ids]),
            answer.before,
            answer.after,
        )
        if not ids:
            self.fruitless = action
            return [Tell(news), *self._withdraw(offering)]
        self._begun.append((now, len(ids)))
        self._loads[answer.session] = action, (*answer.before, answer.after[1])
        self._state.outgoing[answer.session] = Outgoing(action.broker, dict.fromkeys(ids))
        self._state.offering = None
        timeout_s = len(ids) * self._settings.migration_timeout_s
        return [Tell(news), Ask(Migrate(answer.session, action.broker, ids, timeout_s))]

    def migrated(self, answer: Migrated, now: float) -> list[Effect]:
        """End the session: what the other broker has taken is on its way."""
        leaving = self._state.outgoing.pop(answer.session, None)
        if leaving is None:
            return []
        action, loads = self._loads.pop(answer.session)
        if answer.moved:
            self._claims.gave(leaving.to, action.metric, loads, answer.moved / len(leaving.chosen), now)
        else:
            self._claims.took_nothing(leaving.to, now)
        return [Send(leaving.to, Cancel(answer.session)), Tell(SessionEnded(answer.session, answer.moved))]

    def again(self, step: str, session: SessionId, now: float) -> list[Effect]:
        """Give up a request that is unanswered."""
        offering = self._state.offering
        if step != "reply" or offering is None or offering.session != session or offering.is_sampling:
            return []
        return [Send(offering.action.broker, Cancel(session)), *self._next(offering, now)]

    def _again(self, session: SessionId, step: str, at_s: float) -> Timer:
        return Timer(at_s, Again(session, step, self._state.life))
