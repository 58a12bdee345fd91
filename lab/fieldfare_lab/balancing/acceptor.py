"""The local mediator of the load-accepting broker to which subscribers connect (section 3.3).

    Request ──▶ Reply with the state; OK: load and CSS
    Join of each subscriber ──▶ Attach ──▶ Joined
    all N have joined, or N x migration timeout ──▶ Done ──▶ Released: deliver from the switch places on

Before the first subscriber joins, N is unknown; then the broker waits for sampling and a reply.
"""

from __future__ import annotations

from fieldfare.balancing.acceptor import Acceptor
from fieldfare.balancing.messages import Cancel, SessionEnded, SessionId
from fieldfare.effects import Ask, Effect, Send, Tell
from fieldfare_lab.balancing.messages import (
    Attach,
    Attached,
    Done,
    Drop,
    Join,
    Joined,
    Open,
    Released,
    ReleaseNoted,
)
from fieldfare_lab.balancing.poset import Poset
from fieldfare_lab.balancing.settings import MigratingSettings
from fieldfare_lab.balancing.state import Incoming, Joining, MigratingState


class MigratingAcceptor(Acceptor):
    """Sessions in which this broker takes load."""

    _state: MigratingState
    _settings: MigratingSettings

    def __init__(self, state: MigratingState, settings: MigratingSettings, poset: Poset) -> None:
        super().__init__(state, settings)
        self._poset = poset

    def resume(self, now: float) -> list[Effect]:
        """Continue after a restart: a session ends with those that have connected."""
        effects = self._finish(now) if self._state.accepting is not None else []
        for session, incoming in self._state.incoming.items():
            effects += self._tell_done(session, incoming, now)
        return effects

    def _css(self) -> tuple[object, ...]:
        return tuple([self._poset.nodes[key].region for key in self._poset.css()])

    def _accept(self, session: SessionId, sender: str, until_s: float) -> None:
        self._state.accepting = Joining(session, sender, until_s)

    def join(self, sender: str, join: Join, now: float) -> list[Effect]:
        """Attach a subscriber of the session; refuse others."""
        id, accepting = join.subscription.id, self._state.accepting
        incoming = self._state.incoming.get(join.session)
        if incoming is not None and id in incoming.places:
            return [Send(sender, Joined(join.session, id, True))]
        if accepting is None or accepting.session != join.session:
            return [Send(sender, Joined(join.session, id, False))]
        if id in accepting.joined:
            joined = accepting.joined[id] is not None
            return [Send(sender, Joined(join.session, id, True))] if joined else []
        effects: list[Effect] = [Ask(Attach(join.session, join.subscription))]
        accepting.subscriptions[id] = join.subscription
        accepting.joined[id] = None
        if accepting.total is None:
            accepting.total = join.total
            accepting.until_s = now + join.total * self._settings.migration_timeout_s
            effects.append(self._again(join.session, "accept", accepting.until_s))
        return effects

    def attached(self, answer: Attached, now: float) -> list[Effect]:
        """Note that a subscriber has connected; with the last one the session ends."""
        accepting = self._state.accepting
        if accepting is None or accepting.session != answer.session or answer.id not in accepting.joined:
            incoming = self._state.incoming.get(answer.session)
            is_known = incoming is not None and answer.id in incoming.places
            return [] if is_known else [Tell(Drop(answer.session, answer.id))]
        accepting.joined[answer.id] = answer.places
        client = accepting.subscriptions[answer.id].client
        effects: list[Effect] = [Send(client, Joined(answer.session, answer.id, True))]
        connected = sum(places is not None for places in accepting.joined.values())
        return [*effects, *self._finish(now)] if connected == accepting.total else effects

    def _finish(self, now: float) -> list[Effect]:
        accepting = self._state.accepting
        assert accepting is not None
        self._state.accepting = None
        places = {id: at for id, at in accepting.joined.items() if at is not None}
        effects: list[Effect] = [Tell(SessionEnded(accepting.session, len(places)))]
        effects += [Tell(Drop(accepting.session, id)) for id, at in accepting.joined.items() if at is None]
        if not places:
            return [Send(accepting.offloader, Done(accepting.session, {})), *effects]
        subscriptions = {id: accepting.subscriptions[id] for id in places}
        incoming = Incoming(accepting.offloader, subscriptions, places)
        self._state.incoming[accepting.session] = incoming
        return [*self._tell_done(accepting.session, incoming, now), *effects]

    def _tell_done(self, session: SessionId, incoming: Incoming, now: float) -> list[Effect]:
        return [
            Send(incoming.offloader, Done(session, dict(incoming.places))),
            self._again(session, "done", now + self._settings.retry_s),
        ]

    def cancelled(self, sender: str, cancel: Cancel, now: float) -> list[Effect]:
        """End a session with those that have connected."""
        accepting = self._state.accepting
        if accepting is not None and accepting.session == cancel.session:
            return self._finish(now)
        incoming = self._state.incoming.get(cancel.session)
        return [Send(sender, Done(cancel.session, {} if incoming is None else dict(incoming.places)))]

    def released(self, sender: str, released: Released, now: float) -> list[Effect]:
        """Deliver from the switch places on; drop what stays at the old broker."""
        incoming = self._state.incoming.pop(released.session, None)
        effects: list[Effect] = [Send(sender, ReleaseNoted(released.session))]
        if incoming is None:
            return effects
        for id, subscription in incoming.subscriptions.items():
            if id in released.places:
                self._state.subscriptions[id] = subscription
                self._state.moved_s[id] = now
                self._poset.add(id, subscription.region)
                effects.append(Tell(Open(released.session, id, released.places[id])))
            else:
                effects.append(Tell(Drop(released.session, id)))
        return effects

    def unsubscribed(self, id: str) -> list[Effect]:
        """Forget a subscription that is still on its way here."""
        found = [session for session, each in self._state.incoming.items() if id in each.places]
        for session in found:
            del self._state.incoming[session].places[id], self._state.incoming[session].subscriptions[id]
        return [Tell(Drop(session, id)) for session in found]

    def again(self, step: str, session: SessionId, now: float) -> list[Effect]:
        """Repeat `Done`, or end a session whose time has passed."""
        incoming = self._state.incoming.get(session)
        if step == "done" and incoming is not None:
            return self._tell_done(session, incoming, now)
        return super().again(step, session, now)
