"""A network that loses, doubles and delays, with matchers that come, go and die on it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from random import Random

from fieldfare.membership import Dispatcher, MatcherMember, State, attribute_space
from fieldfare.membership.messages import Confirmed, Leave, Restore, Restored, Send, Stop, Stored, Tick, Timer
from fieldfare.membership.table import Table, overlap

PATHS = (("x",), ("y",))
Registry = dict[int, Stored]


@dataclass
class Network:
    """Runs machines on a clock of its own. Everything random comes from one seed.

    `loss` is the share of messages that are lost; as many come twice.
    """

    seed: int
    loss: float = 0.0
    now: float = 0.0
    registry: Registry = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)
    matchers: dict[str, MatcherMember] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    cut_off: set[str] = field(default_factory=set)
    """Servers that reach each other and no other."""

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self._queue: list[tuple[float, int, str, str, object]] = []
        self._count = 0
        founder = self._matcher("m0", founding=True)
        self.dispatchers = {name: Dispatcher(name, [founder.row], Random(name)) for name in ("d0", "d1")}
        for name, dispatcher in self.dispatchers.items():
            self._carry_out(name, dispatcher.start(0.0))

    def _matcher(self, name: str, founding: bool = False) -> MatcherMember:
        member = MatcherMember(name, 2, ("d0", "d1"), Random(f"{self.seed}{name}"), founding=founding)
        self.matchers[name] = member
        self._carry_out(name, member.start(self.now))
        return member

    def join(self) -> str:
        name = f"m{len(self.matchers)}"
        self._matcher(name)
        return name

    def leave(self, name: str) -> None:
        self._carry_out(name, self.matchers[name].handle(name, Leave(), self.now))

    def crash(self, name: str) -> None:
        self.dead.add(name)

    def wake(self, name: str) -> None:
        """One that was crashed goes on as if nothing had been: it was only paused."""
        self.dead.discard(name)
        self._carry_out(name, self.matchers[name].handle(name, Tick(), self.now))

    def subscribe(self, stored: Stored) -> None:
        """The registry first, then any dispatcher."""
        self.registry[stored.number] = stored
        dispatcher = self.rng.choice(sorted(self.dispatchers))
        self._carry_out(dispatcher, self.dispatchers[dispatcher].subscribe(stored, self.now))

    def live(self) -> list[str]:
        """The matchers that are neither dead nor stopped nor leaving, and own something."""
        return [
            name
            for name, member in self.matchers.items()
            if name not in self.dead | self.stopped and member.row.state is State.UP
        ]

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, to, sender, message = heapq.heappop(self._queue)
            self._deliver(to, sender, message)
        self.now = end

    def _deliver(self, to: str, sender: str, message: object) -> None:
        if to in self.dead or to in self.stopped:
            return
        machine = self.matchers.get(to) or self.dispatchers[to]
        self._carry_out(to, machine.handle(sender, message, self.now))

    def _carry_out(self, me: str, effects: list) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                for _ in range(self._copies() if self._is_linked(me, effect.to) else 0):
                    self._later(self.rng.uniform(0.001, 0.3), effect.to, me, effect.message)
            elif isinstance(effect, Timer):
                self._later(effect.at_s - self.now, me, me, Tick())
            elif isinstance(effect, Restore):
                found = tuple(
                    stored
                    for stored in self.registry.values()
                    if any(overlap(span, effect.span) for span in stored.spans[effect.dimension])
                )
                self._later(self.rng.uniform(0.1, 2), me, me, Restored(effect.dimension, effect.span, found))
            elif isinstance(effect, Confirmed):
                self.confirmed.add(effect.number)
            elif isinstance(effect, Stop):
                self.stopped.add(me)

    def _is_linked(self, a: str, b: str) -> bool:
        return (a in self.cut_off) == (b in self.cut_off)

    def _copies(self) -> int:
        chance = self.rng.random()
        return 0 if chance < self.loss else 2 if chance > 1 - self.loss else 1

    def _later(self, seconds: float, to: str, sender: str, message: object) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, to, sender, message))

    # What must hold

    def tables(self) -> list[Table]:
        machines = [*self.dispatchers.values(), *(self.matchers[name] for name in self.live())]
        return [machine.table for machine in machines]

    def check_no_gaps(self) -> None:
        """Every place of every axis has an owner in every table, at any moment."""
        numbers = {name: i for i, name in enumerate(self.matchers)}
        for table in self.tables():
            attribute_space(table, PATHS, numbers)

    def check_complete(self) -> None:
        """Every owner that anybody knows lives, and has every subscription that overlaps its span."""
        for table in self.tables():
            for dimension in range(len(PATHS)):
                for name, span in table.owned(dimension):
                    assert name in self.live(), f"{name} is taken for an owner at {self.now}"
                    held = self.matchers[name].holdings.sets[dimension].keys()
                    wanted = {
                        number
                        for number in self.confirmed
                        if any(overlap(part, span) for part in self.registry[number].spans[dimension])
                    }
                    assert wanted <= held, f"{name} lacks {sorted(wanted - held)} on {dimension}"
