"""The local mediator of the offloading broker that samples and migrates subscribers (section 3.3).

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
from dataclasses import replace

import numpy as np

from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.joint import plan_jointly
from fieldfare.balancing.load import Load
from fieldfare.balancing.messages import Cancel, Decided, Pie, Reply, SessionEnded, SessionId
from fieldfare.balancing.offloader import Offloader
from fieldfare.balancing.plans import Plan
from fieldfare.balancing.press import Profile
from fieldfare.balancing.state import Offering
from fieldfare.effects import Ask, Effect, Send, Tell
from fieldfare_lab.balancing.messages import Detach, Detached, Done, Move, Places, Released, Sample, Sampled
from fieldfare_lab.balancing.poset import Poset
from fieldfare_lab.balancing.settings import MigratingSettings
from fieldfare_lab.balancing.state import Leaving, MigratingState

CANCEL_EVERY = 5
"""A cancelled session is repeated after this many retry intervals."""


def measured_by(profile: Profile, present: Mapping[Hashable, int], load: Load) -> Load:
    """Return a load with the rates that the profile counts: of what arrives, not of a queue's end."""
    counts = np.array([present.get(key, 0) for key in profile.keys], dtype=np.int64)
    return replace(
        load,
        input_per_s=profile.input_per_s,
        deliveries_per_s=float(counts @ profile.matched_per_s),
        output_bytes_per_s=float(counts @ profile.bytes_per_s),
    )


class MigratingOffloader(Offloader):
    """Sessions in which this broker gives load away, and tells subscribers to move."""

    _state: MigratingState
    _settings: MigratingSettings

    def __init__(self, state: MigratingState, settings: MigratingSettings, poset: Poset) -> None:
        super().__init__(state, settings)
        self._poset = poset
        self._their: Reply | None = None

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

    def _question(self, offering: Offering, reply: Reply, now: float) -> object:
        self._their = reply
        return Sample(
            offering.session,
            tuple(self._poset.nodes),
            reply.css,
            self._settings.samples,
            self._settings.sampling_s,
            self._settings.from_log,
            self._state.measured_from_s,
        )

    def believed(self, pie: Pie, now: float) -> Pie:
        return pie

    def allowance(self, now: float) -> float:
        return math.inf

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
        leaving = Leaving(action.broker, dict.fromkeys(chosen), until_s)
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

    def _move(self, session: SessionId, leaving: Leaving, now: float) -> list[Effect]:
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

    def _release(self, session: SessionId, leaving: Leaving, now: float) -> list[Effect]:
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
        if step == "reply":
            return super().again(step, session, now)
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

    def _cancel(self, session: SessionId, leaving: Leaving, now: float) -> list[Effect]:
        later_s = now + CANCEL_EVERY * self._settings.retry_s
        return [Send(leaving.to, Cancel(session)), self._again(session, "move", later_s)]
