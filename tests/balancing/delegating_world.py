"""Brokers whose runtimes choose and move subscriptions, in simulated time: messages are lost, brokers crash.

A runtime here is the simplest that there is: a subscription is a share of a broker's output, `Choose` takes
the smallest ones until one of the two brokers has its target, and a move takes `MOVE_S` seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from fieldfare.balancing import BalancingSettings, EdgeBalancer, EdgeState, Load
from fieldfare.balancing.load import Capacity, Metric
from fieldfare.balancing.messages import (
    Choose,
    Chosen,
    Drained,
    MeasureLoad,
    Migrate,
    Migrated,
    Pie,
    Request,
    Shifted,
    State,
)
from fieldfare.effects import Ask, AskFailed, Effect, Received, Send, Tell, Timer

SETTINGS = BalancingSettings(
    stabilise_s=6,
    unstable_s=12,
    detection_s=2,
    sampling_s=2,
    pie_s=6,
    stale_s=18,
    overload_span_s=2,
    reply_s=3,
    hold_s=60,
    rest_s=120,
    migration_timeout_s=3,
    session_moves_max=5,
    moves_per_min=8,
)
LINK_S, CHOICE_S, MOVE_S = 0.02, 0.3, 0.5


@dataclass
class Broker:
    """A broker: its machine, and the output of each of its subscriptions."""

    machine: EdgeBalancer | None = None
    life: int = 0
    subscriptions: dict[str, float] = field(default_factory=dict)
    is_passive: bool = False
    claimed: float | None = None
    """The output that it says it has, if that is not the truth."""
    is_refusing: bool = False
    """Whether it says that it is OK, and does not answer requests."""
    is_always_busy: bool = False
    """Whether it says that it is BUSY, and that its capacity is sixteen times as high."""
    takes_nothing: bool = False
    """Whether it accepts requests, and then none of the subscriptions."""
    matching_s: float = 0.01
    resting: dict[str, float] = field(default_factory=dict)
    """Until when subscriptions stay that have come or were refused."""
    is_failing: bool = False


class World:
    """Brokers that hear of one another."""

    def __init__(self, settings: BalancingSettings = SETTINGS) -> None:
        self.settings = settings
        self.now = 0.0
        self.brokers: dict[str, Broker] = {}
        self.moves: dict[str, int] = defaultdict(int)
        self.to_lose: dict[str, int] = defaultdict(int)
        self.cuts: set[str] = set()
        self.refused: set[str] = set()
        self.write: Callable[[str, str, object], None] | None = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def start(self, name: str) -> None:
        broker = self.brokers.setdefault(name, Broker())
        broker.life += 1
        state = EdgeState(name, "", "", life=1_000 * broker.life, is_stabilizing=True)
        state.stable_from_s, state.state = self.now + self.settings.stabilise_s, State.STABILIZING
        broker.machine = EdgeBalancer(state, self.settings, is_passive=broker.is_passive)
        self._carry_out(name, broker.machine.start(self.now))

    def crash(self, name: str) -> None:
        """End a broker's machine; moves that it has begun go on."""
        self.brokers[name].machine = None
        self.brokers[name].life += 1

    def drain(self, name: str) -> None:
        self.handle(name, Drained())

    def ask(self, sender: str, to: str, session: Request) -> None:
        """Have a broker receive a request that no machine has sent."""
        self.handle(to, Received(sender, session))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heappop(self._queue)
            action()
        self.now = until

    def handle(self, name: str, message: object) -> None:
        machine = self.brokers[name].machine
        if machine is not None:
            self._carry_out(name, machine.handle(message, self.now))

    def load(self, name: str) -> Load:
        broker = self.brokers[name]
        output = sum(broker.subscriptions.values()) if broker.claimed is None else broker.claimed
        since_s = 0.0 if broker.machine is None else broker.machine.state.measured_from_s
        return Load(
            input_per_s=10.0,
            matching_s=broker.matching_s,
            subscriptions=len(broker.subscriptions),
            output_bytes_per_s=output,
            span_s=self.now - since_s,
            is_calibrated=True,
        )

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        heappush(self._queue, (max(at_s, self.now), next(self._order), action))

    def _carry_out(self, name: str, effects: list[Effect]) -> None:
        life = self.brokers[name].life

        def later(at_s: float, message: object) -> None:
            def arrive() -> None:
                if self.brokers[name].life == life:
                    self.handle(name, message)

            self._at(at_s, arrive)

        for effect in effects:
            if isinstance(effect, Send):
                self._send(name, effect)
            elif isinstance(effect, Timer):
                later(effect.at_s, effect.message)
            elif isinstance(effect, Tell) and self.write is not None:
                self.write("tells", name, effect.news)
            elif isinstance(effect, Ask):
                self._asked(name, effect.question, later)

    def _send(self, name: str, effect: Send) -> None:
        broker, message = self.brokers[name], effect.message
        if isinstance(message, Pie):
            if broker.is_always_busy:
                capacity = Capacity(16 * message.capacity.matching, 16 * message.capacity.output)
                message = replace(message, state=State.BUSY, capacity=capacity)
            for other in self.brokers:
                if other != name and not broker.is_passive and not {name, other} & self.cuts:
                    self._at(
                        self.now + LINK_S,
                        lambda other=other: self.handle(other, Received(name, message)),  # type: ignore[misc]
                    )
            return
        kind = type(message).__name__
        is_lost = name in self.cuts or effect.to in self.cuts
        is_lost |= isinstance(message, Request) and self.brokers[effect.to].is_refusing
        if self.to_lose[kind] > 0:
            self.to_lose[kind] -= 1
            is_lost = True
        if self.write is not None and kind != "Done":
            self.write("lost" if is_lost else "to", name, effect)
        if not is_lost and effect.to in self.brokers:
            self._at(self.now + LINK_S, lambda: self.handle(effect.to, Received(name, message)))

    def _asked(self, name: str, question: object, later: Callable[[float, object], None]) -> None:
        broker = self.brokers[name]
        if isinstance(question, MeasureLoad):
            later(self.now, self.load(name))
        elif isinstance(question, Choose) and broker.is_failing:
            later(self.now + CHOICE_S, AskFailed(question, OSError("the disk is gone")))
        elif isinstance(question, Choose):
            later(self.now + CHOICE_S, self._chosen(name, question))
        elif isinstance(question, Migrate):
            takes_nothing = self.brokers[question.to].takes_nothing
            taken = [id for id in question.ids if id not in self.refused and not takes_nothing]
            broker.resting |= dict.fromkeys(set(question.ids) - set(taken), self.now + self.settings.hold_s)
            for id in taken:
                self._at(self.now + MOVE_S, lambda id=id: self._move(name, question.to, id))  # type: ignore[misc]
            later(self.now + MOVE_S, Migrated(question.session, len(taken)))

    def _chosen(self, name: str, question: Choose) -> Chosen:
        mine, theirs = self.load(name), question.theirs
        metric = question.action.metric
        my_target, their_target = (each.output_ratio for each in question.targets)
        left = min(mine.output_ratio - my_target, their_target - theirs.output_ratio)
        left = left if metric is Metric.OUTPUT else 0.0
        if question.action.overloaded is not None:
            left = max(left, mine.output_ratio - self.settings.lower_overload.output)
        ids, given = [], 0.0
        for id, output in sorted(self.brokers[name].subscriptions.items(), key=lambda each: each[::-1]):
            if self.brokers[name].resting.get(id, 0.0) > self.now and question.action.overloaded is None:
                continue
            if output <= left + 1e-9 and len(ids) < question.count_max:
                ids.append(id)
                left, given = left - output, given + output
        after = mine.after(0, 0, 0, -given), theirs.after(0, 0, 0, given)
        return Chosen(question.session, tuple(ids), (mine, theirs), after)

    def _move(self, name: str, to: str, id: str) -> None:
        output = self.brokers[name].subscriptions.pop(id, None)
        if output is None:
            return
        self.brokers[to].subscriptions[id] = output
        self.brokers[to].resting[id] = self.now + self.settings.rest_s
        self.moves[id] += 1
        for each in (name, to):
            self.handle(each, Shifted())
