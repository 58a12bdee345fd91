"""The local mediator of the load-accepting broker (section 3.3).

    Request ──▶ Reply with the state; OK: the load
    Cancel, or no more time ──▶ the session is over

The session lasts as long as the runtimes need to move as many subscriptions as one may have. The paper's
mediator, to which subscribers connect, is in `lab/`.
"""

from __future__ import annotations

from fieldfare.balancing.load import Load
from fieldfare.balancing.messages import Again, Cancel, Reply, Request, SessionEnded, SessionId, State
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.balancing.state import Accepting, EdgeState
from fieldfare.effects import Effect, Send, Tell, Timer


class Acceptor:
    """Sessions in which this broker takes load."""

    def __init__(self, state: EdgeState, settings: BalancingSettings) -> None:
        self._state = state
        self._settings = settings

    def requested(self, sender: str, request: Request, load: Load | None, now: float) -> list[Effect]:
        """Accept if the state is OK; the same request again gets the same answer."""
        accepting = self._state.accepting
        is_same = accepting is not None and accepting.session == request.session
        state = State.OK if is_same else self._state.state
        if load is None or (not is_same and self._state.is_busy):
            state = State.BUSY
        if state is not State.OK:
            return [Send(sender, Reply(request.session, state))]
        effects: list[Effect] = [Send(sender, Reply(request.session, State.OK, load, self._css()))]
        if not is_same:
            until_s = now + self._settings.sampling_s + 2 * self._settings.reply_s
            until_s += self._settings.session_moves_max * self._settings.migration_timeout_s
            self._accept(request.session, sender, until_s)
            effects.append(self._again(request.session, "accept", until_s))
        return effects

    def _css(self) -> tuple[object, ...]:
        """Return the covering subscription set, if the other broker is to sample with it."""
        return ()

    def _accept(self, session: SessionId, sender: str, until_s: float) -> None:
        self._state.accepting = Accepting(session, sender, until_s)

    def _finish(self, now: float) -> list[Effect]:
        accepting = self._state.accepting
        assert accepting is not None
        self._state.accepting = None
        return [Tell(SessionEnded(accepting.session, 0))]

    def cancelled(self, sender: str, cancel: Cancel, now: float) -> list[Effect]:
        """End a session."""
        accepting = self._state.accepting
        return self._finish(now) if accepting is not None and accepting.session == cancel.session else []

    def again(self, step: str, session: SessionId, now: float) -> list[Effect]:
        """End a session whose time has passed."""
        accepting = self._state.accepting
        is_over = accepting is not None and accepting.session == session and now >= accepting.until_s
        return self._finish(now) if step == "accept" and is_over else []

    def _again(self, session: SessionId, step: str, at_s: float) -> Timer:
        return Timer(at_s, Again(session, step, self._state.life))
