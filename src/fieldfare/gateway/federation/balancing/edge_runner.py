"""Runs the edge balancer of this broker (`fieldfare.balancing.edge`): its messages, questions and news.

    Pie ──▶ a row of the board        Request, Reply, Cancel ──▶ letters of the board
    MeasureLoad ◀── the meter         Choose ◀── the planner         Migrate ◀── the mover's sessions

The machine runs in every broker, and says how loaded it is. It begins and accepts sessions only in a service
that was told to balance by itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from fieldfare.balancing import BalancingSettings, EdgeBalancer, EdgeState
from fieldfare.balancing.advice import Peer
from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.load import Load, capacity_of, metrics_of
from fieldfare.balancing.messages import (
    Cancel,
    Choose,
    Chosen,
    Decided,
    Drained,
    MeasureLoad,
    Migrate,
    Migrated,
    Pie,
    Reply,
    Request,
    SessionEnded,
    SessionId,
    Shifted,
    State,
    StateChanged,
)
from fieldfare.balancing.settings import Triggers
from fieldfare.effects import Received, Send
from fieldfare.gateway.federation.balance_board import BalanceBoard
from fieldfare.gateway.federation.balancing.planning import Planner
from fieldfare.gateway.federation.balancing.rows import peer_of, row_of
from fieldfare.gateway.federation.balancing.window import WINDOW_S, Window
from fieldfare.gateway.federation.documents import AutomaticDocument
from fieldfare.gateway.federation.moving.book import Key
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.federation.wire import Letter, LoadRow
from fieldfare.gateway.metrics import BalancingMetrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.setting_values import RATIOS
from fieldfare.model import Subscription, space_name
from fieldfare.runtimes.machines import MachineRunner
from fieldfare.storage.moves import Move

NAMED_MAX = 5
"""Maximum subscriptions that a line of the log names."""

logger = logging.getLogger("fieldfare.gateway.balancing")


class Migration:
    """The subscriptions of one session, until the other broker has taken or refused each of them."""

    def __init__(self) -> None:
        self.waiting: set[Key] = set()
        self.moved = 0
        self.is_over = asyncio.Event()

    def end(self, key: Key, *, has_moved: bool) -> None:
        """Note that a subscription is taken or stays."""
        self.waiting.discard(key)
        self.moved += has_moved
        if not self.waiting:
            self.is_over.set()


class EdgeRunner:
    """The edge balancer of this broker, on the event loop.

    Parameters
    ----------
    measure
        Returns the load since a time of the monotonic clock, and the matches that it is computed from.
    unreachable
        Returns the brokers of the sites that cannot be reached: a move counts only once all know of it.
    is_reachable
        Returns whether there is a path to a broker.
    poke
        Has what waits for other brokers sent now.
    """

    def __init__(
        self,
        name: str,
        *,
        is_automatic: bool,
        settings: BalancingSettings,
        board: BalanceBoard,
        moves: Moves,
        planner: Planner,
        measure: Callable[[float], tuple[Load, Window]],
        metrics: BalancingMetrics,
        unreachable: Callable[[], list[str]],
        is_reachable: Callable[[str], bool],
        poke: Callable[[], None],
    ) -> None:
        self._name = name
        self.is_automatic = is_automatic
        self.settings = settings
        self._board, self._moves, self._planner = board, moves, planner
        self._measure, self._metrics, self._poke = measure, metrics, poke
        self._unreachable, self._is_reachable = unreachable, is_reachable
        self._number = 0
        self._chosen: dict[str, Subscription] = {}
        self._migration: Migration | None = None
        self._resting: dict[Key, float] = {}
        """Until when subscriptions stay, because they have just come or could not move."""
        self._target = 0.0
        """The mean of all brokers that the last plan went toward, of the metric that it was about."""
        self._last: dict[str, Any] | None = None
        self._last_s = 0.0
        self._context = contextvars.copy_context()
        now_s = time.monotonic()
        state = EdgeState(
            name,
            cluster="",
            head="",
            # Sessions of an earlier process are told apart by their life.
            life=time.time_ns() // 1_000_000,
            state=State.STABILIZING,
            is_stabilizing=True,
            stable_from_s=now_s + settings.stabilise_s,
        )
        self._machine = EdgeBalancer(state, settings, is_passive=not is_automatic)
        self._runner = MachineRunner(
            {MeasureLoad: self._answer_load, Choose: self._choose, Migrate: self._migrate},
            {Decided: self._decided, StateChanged: self._changed, SessionEnded: self._ended},
            self._send,
            logger=logger,
        )
        self._metrics.show_state(state.state)

    def start(self) -> None:
        """Start measuring and, if the broker balances by itself, deciding; on the running event loop."""
        self._board.on_row, self._board.on_letter = self._hear_row, self._hear_letter
        self._moves.call_on_step(self._stepped)
        self._runner.add(self._name, self._machine)

    async def close(self) -> None:
        """Stop; subscriptions that are moving go on after the next start."""
        await self._runner.close()

    @property
    def state(self) -> State:
        """The load balancing state."""
        return self._machine.state.state

    @property
    def since_s(self) -> float:
        """When subscriptions came or left last: matches of before are of others."""
        return self._machine.state.measured_from_s

    def drained(self, *, is_over: bool = False) -> None:
        """Take no load until the next start: an operator moves everything away. Or take it again."""
        self._pass(Drained(is_over))

    def row(self, load: Load) -> LoadRow:
        """Return what other brokers are told about a load of this one."""
        self._number = max(self._number + 1, time.time_ns() // 1_000_000)
        return row_of(self._name, self._number, load, self.state, is_automatic=self.is_automatic)

    def peers(self, mine: Load, *, is_drain: bool) -> dict[str, Peer]:
        """Return the brokers that can be reached, as far as they count beside this broker's load.

        A broker that balances by itself does so with others that do; one that is drained needs any.
        """
        viewed = self._machine.peers(self._clock())
        found = {}
        for row, age_s in self._board.known():
            is_partner = row.is_automatic or is_drain or not self.is_automatic
            if row.name == self._name or not is_partner or age_s >= self.settings.stale_s:
                continue
            if not self._is_reachable(row.name):
                continue
            peer = peer_of(row, mine, self.settings)
            is_doubted = row.name in viewed and viewed[row.name].state is State.NOT_AVAILABLE
            found[row.name] = replace(peer, state=State.NOT_AVAILABLE) if is_doubted else peer
        return found

    @property
    def triggers(self) -> Triggers:
        """The differences from which on this broker balances."""
        return self._machine.triggers(self._clock())

    def waits_s(self, action: BrokerAction) -> float:
        """Return how long a difference must still last before this broker balances it by itself."""
        return self._machine.waits_s(action, self._clock())

    def resting(self) -> set[Key]:
        """Return the subscriptions that stay for now, because they have just come or could not move."""
        now_s = self._clock()
        return {key for key, until_s in self._resting.items() if until_s > now_s}

    def document(self) -> AutomaticDocument:
        """Return whether this broker balances by itself, and what it did last."""
        last = None if self._last is None else self._last | {"age_s": round(self._clock() - self._last_s, 1)}
        return AutomaticDocument(self.is_automatic, self.state.value, last)

    @staticmethod
    def _clock() -> float:
        return time.monotonic()

    # Messages of the machine, and for it

    def _pass(self, message: object) -> None:
        try:
            # Not in the context of the request that brought it: its id would be in lines of later decisions.
            self._context.copy().run(self._runner.dispatch, self._name, message)
        except Exception:
            logger.exception("balancing cannot process %s", type(message).__name__)

    def _send(self, name: str, effect: Send) -> None:
        match effect.message:
            case Pie():
                load = self._machine.load
                if load is not None:
                    self._board.put(self.row(load))
            case Request(session):
                self._board.post(Letter(name, effect.to, 0, session.life, session.number, "request"))
            case Reply(session, state, load):
                row = None if load is None else self.row(load)
                self._board.post(
                    Letter(name, effect.to, 0, session.life, session.number, "reply", state.value, row)
                )
            case Cancel(session):
                self._board.post(Letter(name, effect.to, 0, session.life, session.number, "cancel"))

    def _hear_row(self, row: LoadRow) -> None:
        mine = self._machine.load
        if row.is_automatic and mine is not None:  # Before it is measured, no claim can be compared with it.
            theirs = peer_of(row, mine, self.settings)
            metrics, capacity = metrics_of(theirs.load), capacity_of(theirs.load)
            pie = Pie(row.name, "", row.number, metrics, theirs.state, frozenset(), capacity)
            self._pass(Received(row.name, pie))

    def _hear_letter(self, letter: Letter) -> None:
        offloader = self._name if letter.step == "reply" else letter.source
        session = SessionId(offloader, letter.life, letter.number)
        message: Request | Reply | Cancel
        if letter.step == "reply":
            mine, state = self._machine.load, State(letter.state)
            message = Reply(session, state)
            if letter.load is not None and mine is not None:
                theirs = peer_of(msgspec.structs.replace(letter.load, state=state), mine, self.settings)
                message = Reply(session, theirs.state, theirs.load)
        else:
            message = Request(session) if letter.step == "request" else Cancel(session)
        self._pass(Received(letter.source, message))

    # Questions of the machine

    async def _answer_load(self, name: str, question: MeasureLoad) -> Load:
        load, _ = await asyncio.to_thread(self._measure, question.since_s)
        self._metrics.show_load(load)
        resting = self.resting()
        self._resting = {key: until_s for key, until_s in self._resting.items() if key in resting}
        return load

    async def _choose(self, name: str, question: Choose) -> Chosen:
        if away := self._unreachable():
            raise ConnectionError(f"nothing can move while {', '.join(away)} cannot be reached")
        load, window = await asyncio.to_thread(self._measure, question.since_s)
        action, resting = question.action, self.resting()
        settings = replace(self.settings, session_moves_max=question.count_max)
        view = await asyncio.to_thread(self._planner.view, load, window)
        plan, chosen = await asyncio.to_thread(
            self._planner.choose, view, action, question.theirs, question.targets, settings, resting
        )
        if not chosen:
            logger.info("balancing: none of %d is chosen, %d rest", len(view.subscriptions), len(resting))
        before = load, question.theirs
        self._target = question.targets[0].metric(action.metric)
        self._chosen = {f"{each.space}/{each.id}": each for each in chosen}
        after = before if plan is None else (plan.mine, plan.theirs)
        return Chosen(question.session, tuple(self._chosen), before, after)

    async def _migrate(self, name: str, question: Migrate) -> Migrated:
        self._migration = migration = Migration()
        subscriptions = [self._chosen[id] for id in question.ids]
        migration.waiting = {(each.space, each.id) for each in subscriptions}
        for each in subscriptions:
            try:
                await self._moves.begin(each, question.to)
            except HttpProblem as problem:
                logger.warning("%s in the space %s stays: %s", each.id, each.space, problem.detail)
                self._rest((each.space, each.id), self.settings.hold_s)
                migration.end((each.space, each.id), has_moved=False)
        self._poke()
        with suppress(TimeoutError):
            async with asyncio.timeout(question.timeout_s):
                await migration.is_over.wait()
        self._migration = None
        return Migrated(question.session, migration.moved)

    def _rest(self, key: Key, time_s: float) -> None:
        self._resting[key] = self._clock() + time_s

    def _stepped(self, before: Move | None, after: Move | None) -> None:
        """Note a step of a move, of a session or another one."""
        move = after or before
        assert move is not None
        key, state = move.key, "" if after is None else after.state
        is_new = before is None or (before.session, before.state) != (move.session, state)
        if is_new and state in ("arriving", "ending"):
            self._metrics.count_moved("in" if state == "arriving" else "out")
            self._pass(Shifted())
        if is_new and state == "here":
            self._rest(key, self.settings.rest_s)
        migration = self._migration
        if migration is not None and key in migration.waiting and state != "offered":
            if state != "ending":
                self._rest(key, self.settings.hold_s)
            migration.end(key, has_moved=state == "ending")

    # News of the machine

    def _decided(self, name: str, news: Decided) -> None:
        names = [self._chosen[each.key] for each in news.moved if isinstance(each.key, str)]
        (mine, theirs), (mine_after, theirs_after) = news.before, news.after
        self._last_s = self._clock()
        self._last = {
            "to": news.to,
            "metric": news.metric.value,
            "overloaded": None if news.overloaded is None else news.overloaded.value,
            "here": float(mine.metric(news.metric)),
            "there": float(theirs.metric(news.metric)),
            "target": self._target,
            "moved": len(news.moved),
        }
        reason = (
            f"{news.metric} is {self._last['here']:.3g} here and {self._last['there']:.3g} at {news.to},"
            f" {self._target:.3g} is the mean"
        )
        if news.overloaded is not None:
            reason = f"{news.overloaded} is overloaded ({float(mine.ratio(news.overloaded)):.3g}), {reason}"
        if not names:
            logger.info("balancing: %s: no move there makes it better", reason)
            return
        shown = ", ".join(f"{space_name(each.space)}/{each.id}" for each in names[:NAMED_MAX])
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        logger.info(
            "balancing: %s: %s%s move there; expected %.3g and %.3g (session %s)",
            *(reason, shown, more),
            *(float(mine_after.metric(news.metric)), float(theirs_after.metric(news.metric)), news.session),
        )

    def _changed(self, name: str, news: StateChanged) -> None:
        logger.info("balancing: the state is %s, was %s", news.after, news.before)
        self._metrics.show_state(news.after)

    def _ended(self, name: str, news: SessionEnded) -> None:
        role = "offloading" if news.session.offloader == name else "accepting"
        self._metrics.sessions.labels(role).inc()
        logger.info("balancing: the session %s has ended, %d moved", news.session, news.moved)


def balancing_settings(interval_s: float, moves_per_min: int, counted: tuple[str, ...]) -> BalancingSettings:
    """Return the settings of a service's balancer: the paper's thresholds, joint plans, times in proportion.

    Parameters
    ----------
    interval_s
        Seconds between two detections.
    counted
        The ratios that count as overload.
    """
    own = BalancingSettings()

    def bounds(all_of: Any) -> Any:
        return replace(all_of, **{each: float("inf") for each in RATIOS if each not in counted})

    return replace(
        own,
        lower_overload=bounds(own.lower_overload),
        higher_overload=bounds(own.higher_overload),
        detection_s=interval_s,
        stabilise_s=3 * interval_s,
        unstable_s=6 * interval_s,
        sampling_s=interval_s,
        pie_s=3 * interval_s,
        lasting_s=window_s(interval_s),
        follow_s=9 * interval_s,
        stale_s=max(9 * interval_s, STALE_MIN_S),
        overload_span_s=interval_s,
        hold_s=30 * interval_s,
        rest_s=60 * interval_s,
        migration_timeout_s=3.0,
        improvement=0.03,
        session_moves_max=SESSION_MOVES_MAX,
        moves_per_min=moves_per_min,
    )


def window_s(interval_s: float) -> float:
    """Return over how many seconds loads are measured; a difference must last as long before it counts."""
    return min(WINDOW_S, 6 * interval_s)


STALE_MIN_S = 10.0
"""Minimum seconds after which another broker's load is ignored: some requests of an idle link."""

SESSION_MOVES_MAX = 20
"""Maximum subscriptions that one session moves."""
