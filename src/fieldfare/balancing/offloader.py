"""The local mediator of the offloading broker (section 3.3).

    Request ──▶ Reply OK ──▶ Sample ──▶ Move to each subscriber ──▶ Done ──▶ Detach ──▶ Released
       │ another state, or silence: the next entry of the broker-action list

The paper promises best effort: duplicates are dropped by the client, and a message can be lost where a path
is not set up when a subscriber leaves. **Here migration is exact.** The acceptor names the places from which
on it has the events of each origin. The old broker then chooses a switch place per origin, not below that,
delivers everything before it, and releases the subscription; the new broker delivers from there on.

Deviations:

* **Only connected subscribers move.** Unsubscribing those that did not connect in time, as the paper's text
  reads, would lose their messages.
* The old broker itself removes a moved subscription; the subscriber need not unsubscribe.
* The session ends with `Done`. The events that have queued at the old broker are delivered after that: an
  overloaded broker must not wait for its queue before it can shed more.
* A session in which nothing is chosen, or whose acceptor is silent, is cancelled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping

from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.joint import measured_by, plan_jointly
from fieldfare.balancing.load import Load, Metrics
from fieldfare.balancing.messages import (
    Again,
    Cancel,
    Decided,
    Detach,
    Detached,
    Done,
    Move,
    Pie,
    Places,
    Released,
    Reply,
    Request,
    Sample,
    Sampled,
    SessionEnded,
    SessionId,
    State,
)
from fieldfare.balancing.plans import Plan
from fieldfare.balancing.poset import Poset
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.balancing.state import EdgeState, Offering, Outgoing
from fieldfare.effects import Ask, Effect, Send, Tell, Timer

CANCEL_EVERY = 5
"""A cancelled session is repeated after this many retry intervals."""


class Offloader:
    """Sessions in which this broker gives load away."""

    def __init__(self, state: EdgeState, settings: BalancingSettings, poset: Poset) -> None:
        self._state = state
        self._settings = settings
        self._poset = poset
        self._load: Load | None = None
        self._their: Reply | None = None
        self.fruitless: BrokerAction | None = None
        """The action of the last session that found nothing to move; taken by the detection."""
        self.targets: dict[str, Metrics] = {}
        """The metrics that each broker is to have; set by the detection."""
        self.is_refused = False
        """Whether every broker of the last list refused; taken by the detection."""

    def begin(self, actions: list[BrokerAction], load: Load, now: float) -> list[Effect]:
        """Ask the first broker of a broker-action list."""
        session = self._state.next_session()
        self._load, self._their = load, None
        self._state.offering = Offering(session, actions[0], actions[1:])
        return [
            Send(actions[0].broker, Request(session)),
            self._again(session, "reply", now + self._settings.reply_s),
        ]

    def resume(self, now: float) -> list[Effect]:
        """Continue after a restart: a session before `Move` is cancelled, later ones go on."""
        effects: list[Effect] = []
        offering, self._state.offering = self._state.offering, None
        if offering is not None:
            effects.append(Send(offering.action.broker, Cancel(offering.session)))
        for session, leaving in self._state.outgoing.items():
            if leaving.released is not None:
                effects += self._release(session, leaving, now)
            elif leaving.joined is not None:
                effects.append(Ask(Detach(session, leaving.joined)))
            else:
                leaving.is_current = False
                effects += self._cancel(session, leaving, now)
        return effects

    def replied(self, sender: str, reply: Reply, now: float) -> list[Effect]:
        """Begin to sample, or ask the next broker."""
        offering = self._state.offering
        is_asked = offering is not None and offering.session == reply.session and not offering.is_sampling
        if offering is None or not is_asked or sender != offering.action.broker:
            return []
        if reply.state is not State.OK or reply.load is None:
            return self._next(offering, now)
        offering.is_sampling = True
        self._their = reply
        return [Ask(self._question(offering, reply, now))]

    def _question(self, offering: Offering, reply: Reply, now: float) -> object:
        """Return the question whose answer says what is to move."""
        return Sample(
            offering.session,
            tuple(self._poset.nodes),
            reply.css,
            self._settings.samples,
            self._settings.sampling_s,
            self._settings.from_log,
            self._state.measured_from_s,
        )

    def failed(self, question: object, now: float) -> list[Effect]:
        """End a session whose subscriptions cannot be chosen."""
        offering = self._state.offering
        if offering is None or getattr(question, "session", None) != offering.session:
            return []
        self.is_refused = True  # Not again at once: the reason may last.
        return self._withdraw(offering)

    def _withdraw(self, offering: Offering) -> list[Effect]:
        return [Send(offering.action.broker, Cancel(offering.session)), *self._end(offering.session)]

    def believed(self, pie: Pie, now: float) -> Pie:
        """Return a PIE message of another broker as far as it counts."""
        return pie

    def allowance(self, now: float) -> float:
        """Return the number of subscriptions that a session may move now."""
        return math.inf

    def _next(self, offering: Offering, now: float) -> list[Effect]:
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

    def sampled(self, answer: Sampled, now: float) -> list[Effect]:
        """Choose the subscribers, and tell them to move."""
        offering, theirs = self._state.offering, self._their
        if offering is None or offering.session != answer.session or theirs is None or self._load is None:
            return []
        action = offering.action
        plan = self._plan(action, answer, theirs, now)
        chosen = self._subscribers(plan, action, now)
        assert theirs.load is not None
        loads, estimated = (self._load, theirs.load), (plan.mine, plan.theirs)
        effects: list[Effect] = [
            Tell(
                Decided(
                    offering.session,
                    action.broker,
                    action.metric,
                    action.overloaded,
                    plan.moved,
                    loads,
                    estimated,
                )
            )
        ]
        if not chosen:
            self.fruitless = action
            return [*effects, *self._withdraw(offering)]
        until_s = now + len(chosen) * self._settings.migration_timeout_s + self._settings.reply_s
        leaving = Outgoing(action.broker, dict.fromkeys(chosen), until_s)
        self._state.outgoing[offering.session] = leaving
        self._state.offering = None
        return [*effects, *self._move(offering.session, leaving, now)]

    def _plan(self, action: BrokerAction, answer: Sampled, theirs: Reply, now: float) -> Plan:
        movable = self._movable(action, now)
        counts = Counter(self._poset.key_of(id) for id in movable)
        known = set(answer.profile.keys)
        poset = Poset()
        if known >= set(self._poset.nodes):
            poset = self._poset
        else:
            # Subscriptions that came while sampling have no vectors yet.
            poset = self._poset.copy()
            for key in [key for key in poset.nodes if key not in known]:
                poset.discard(key)
        assert self._load is not None and theirs.load is not None
        offload = self._settings.offload
        if offload is None:
            present = {key: len(node.ids) for key, node in poset.nodes.items()}
            mine = measured_by(answer.profile, present, self._load)
            loads = mine, theirs.load
            targets = self.targets[self._state.name], self.targets[action.broker]
            return plan_jointly(action, loads, answer.profile, present, counts, targets, self._settings)
        return offload(
            action.metric,
            action.overloaded,
            (self._load, theirs.load),
            poset,
            answer.profile,
            counts,
            theirs.css,
            self._settings,
        )

    def _movable(self, action: BrokerAction, now: float) -> list[str]:
        leaving = self._state.leaving()
        rested_s = now - self._settings.rest_s
        return [
            id
            for id, each in self._state.subscriptions.items()
            if id not in leaving
            and not each.is_pinned
            and (action.overloaded is not None or self._state.moved_s.get(id, rested_s) <= rested_s)
        ]

    def _subscribers(self, plan: Plan, action: BrokerAction, now: float) -> list[str]:
        """Return the ids to move, for each unique subscription the oldest at this broker."""
        by_key: dict[Hashable, list[str]] = {}
        for id in self._movable(action, now):
            by_key.setdefault(self._poset.key_of(id), []).append(id)
        return [id for each in plan.moved for id in by_key.get(each.key, [])[: each.number]]

    def _move(self, session: SessionId, leaving: Outgoing, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for id in leaving.chosen:
            each = self._state.subscriptions.get(id)
            if each is not None:
                effects.append(Send(each.client, Move(session, each, leaving.to, len(leaving.chosen))))
        return [*effects, self._again(session, "move", now + self._settings.retry_s)]

    def done(self, sender: str, done: Done) -> list[Effect]:
        """Deliver up to the switch places, then release."""
        leaving = self._state.outgoing.get(done.session)
        if leaving is None:
            return [Send(sender, Released(done.session, {}))] if done.joined else []
        if leaving.released is not None:
            return [Send(sender, Released(done.session, leaving.released))]
        if leaving.joined is not None:
            return []
        here = self._state.subscriptions
        joined = {id: at for id, at in done.joined.items() if id in leaving.chosen and id in here}
        if not joined:
            del self._state.outgoing[done.session]
            answer: list[Effect] = [Send(sender, Released(done.session, {}))] if done.joined else []
            return [*answer, Tell(SessionEnded(done.session, 0))] if leaving.is_current else answer
        leaving.joined = joined
        leaving.chosen = dict.fromkeys(joined)
        for id in joined:
            self._poset.remove(id)
        effects: list[Effect] = [Ask(Detach(done.session, joined))]
        was_current, leaving.is_current = leaving.is_current, False
        return [*effects, Tell(SessionEnded(done.session, len(joined)))] if was_current else effects

    def detached(self, answer: Detached, now: float) -> list[Effect]:
        """Tell the acceptor that it delivers now."""
        leaving = self._state.outgoing.get(answer.session)
        if leaving is None or leaving.released is not None:
            return []
        places: Mapping[str, Places] = {
            id: at for id, at in answer.places.items() if id in self._state.subscriptions
        }
        for id in places:
            del self._state.subscriptions[id]
            self._state.moved_s.pop(id, None)
        leaving.released = dict(places)
        return self._release(answer.session, leaving, now)

    def _release(self, session: SessionId, leaving: Outgoing, now: float) -> list[Effect]:
        assert leaving.released is not None
        return [
            Send(leaving.to, Released(session, leaving.released)),
            self._again(session, "release", now + self._settings.retry_s),
        ]

    def noted(self, session: SessionId) -> None:
        """Forget a session whose subscriptions the acceptor delivers to."""
        leaving = self._state.outgoing.get(session)
        if leaving is not None and leaving.released is not None:
            del self._state.outgoing[session]

    def again(self, step: str, session: SessionId, now: float) -> list[Effect]:
        """Repeat what is unanswered, or give up."""
        offering = self._state.offering
        if step == "reply":
            if offering is None or offering.session != session or offering.is_sampling:
                return []
            return [Send(offering.action.broker, Cancel(session)), *self._next(offering, now)]
        leaving = self._state.outgoing.get(session)
        if leaving is None:
            return []
        if step == "release" and leaving.released is not None:
            return self._release(session, leaving, now)
        if step == "move" and leaving.joined is None:
            if now < leaving.until_s:
                return self._move(session, leaving, now)
            ended: list[Effect] = [Tell(SessionEnded(session, 0))] if leaving.is_current else []
            leaving.is_current = False
            return [*ended, *self._cancel(session, leaving, now)]
        return []

    def _cancel(self, session: SessionId, leaving: Outgoing, now: float) -> list[Effect]:
        later_s = now + CANCEL_EVERY * self._settings.retry_s
        return [Send(leaving.to, Cancel(session)), self._again(session, "move", later_s)]

    def _again(self, session: SessionId, step: str, at_s: float) -> Timer:
        return Timer(at_s, Again(session, step, self._state.life))
