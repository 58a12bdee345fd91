"""The offloading broker where the runtime knows the subscriptions, and moves them exactly by itself.

    Request ──▶ Reply OK ──▶ Choose ──▶ Migrate ──▶ Cancel: the session is over at both
       │ another state, or silence: the next entry of the broker-action list

A service has too many subscriptions for a second set of them here, and a protocol of its own that moves each
one exactly, through kills and cuts. So this mediator only decides when, to whom and how many: what is asked
of other brokers are their loads, which count as far as they can be true (`claims`), and **no broker's word
moves more than the settings allow**, in one session and in each minute. It stores nothing: after a crash a
session is over, and what it began to move goes on.
"""

from __future__ import annotations

import math
from collections import deque

from fieldfare.balancing.claims import Claims
from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.load import Load
from fieldfare.balancing.messages import (
    Cancel,
    Choose,
    Chosen,
    Decided,
    Migrate,
    Migrated,
    Pie,
    Reply,
    SessionEnded,
    SessionId,
)
from fieldfare.balancing.offloader import Offloader
from fieldfare.balancing.plans import Moved
from fieldfare.balancing.poset import Poset
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.balancing.state import EdgeState, Offering, Outgoing
from fieldfare.effects import Ask, Effect, Send, Tell

MINUTE_S = 60.0


class DelegatingOffloader(Offloader):
    """Sessions in which this broker gives load away, and its runtime chooses and moves it."""

    def __init__(self, state: EdgeState, settings: BalancingSettings, poset: Poset) -> None:
        super().__init__(state, settings, poset)
        self._claims = Claims(settings)
        self._loads: dict[SessionId, tuple[BrokerAction, tuple[Load, Load, Load]]] = {}
        self._begun: deque[tuple[float, int]] = deque()
        """When moves began in the last minute, and how many."""

    def allowance(self, now: float) -> float:
        """Return the number of subscriptions that a session may move now."""
        while self._begun and self._begun[0][0] <= now - MINUTE_S:
            self._begun.popleft()
        per_min = self._settings.moves_per_min or math.inf
        left = per_min - sum(number for _, number in self._begun)
        return max(0.0, min(self._settings.session_moves_max or math.inf, left))

    def _question(self, offering: Offering, reply: Reply, now: float) -> object:
        assert reply.load is not None
        self._claims.accepted(offering.action.broker)
        targets = self.targets[self._state.name], self.targets[offering.action.broker]
        count_max = int(min(self.allowance(now), 1 << 62))
        since_s = self._state.measured_from_s
        return Choose(offering.session, offering.action, reply.load, targets, since_s, count_max)

    def _next(self, offering: Offering, now: float) -> list[Effect]:
        self._claims.refused(offering.action.broker, now)
        return super()._next(offering, now)

    def believed(self, pie: Pie, now: float) -> Pie:
        """Return a PIE message of another broker as far as it counts."""
        return self._claims.view(pie, now)

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
        timeout_s = len(ids) * self._settings.migration_timeout_s
        leaving = Outgoing(action.broker, dict.fromkeys(ids), now + timeout_s)
        self._state.outgoing[answer.session] = leaving
        self._state.offering = None
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

    def failed(self, question: object, now: float) -> list[Effect]:
        """End a session whose subscriptions cannot be chosen or moved."""
        if isinstance(question, Migrate):
            return self.migrated(Migrated(question.session, 0), now)
        return super().failed(question, now)
