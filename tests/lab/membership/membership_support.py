"""Matchers that come, go and die on a network that loses, doubles and delays."""

from __future__ import annotations

from random import Random

import simpy

from fieldfare.effects import Machine
from fieldfare_lab.membership import Dispatcher, MatcherMember, MatcherTable, State, attribute_space
from fieldfare_lab.membership.messages import Beat, Confirmed, Leave, Restore, Restored, StoredSubscription
from fieldfare_lab.membership.table import overlap
from fieldfare_lab.simulation.network import Network

PATHS = (("x",), ("y",))
Registry = dict[int, StoredSubscription]


class System:
    """A founding matcher, two dispatchers, and who joins them. Everything random comes from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.registry: Registry = {}
        self.confirmed: set[int] = set()
        self.matchers: dict[str, MatcherMember] = {}
        self.dispatchers: dict[str, Dispatcher] = {}
        self.stopped_ones: set[str] = set()
        self._environment = simpy.Environment()
        self._seed = seed
        self.network = Network(self._environment, self, lambda: self.rng.uniform(0.001, 0.3), self.rng)
        founder = self._matcher("m0", founding=True)
        for name in ("d0", "d1"):
            self.dispatchers[name] = Dispatcher(name, [founder.row], Random(name))
            self._add(name, self.dispatchers[name])

    @property
    def now(self) -> float:
        return self._environment.now

    def _add(self, name: str, machine: Machine) -> None:
        self.network.add(name, machine)

    def _matcher(self, name: str, founding: bool = False) -> MatcherMember:
        rng = Random(f"{self._seed}{name}")
        member = self.matchers[name] = MatcherMember(name, 2, ("d0", "d1"), rng, founding=founding)
        self._add(name, member)
        return member

    # Events

    def lose(self, share: float) -> None:
        """Lose this share of messages, and duplicate the same share."""
        self.network.loss = self.network.doubled = share

    def join(self) -> str:
        name = f"m{len(self.matchers)}"
        self._matcher(name)
        return name

    def leave(self, name: str) -> None:
        self.network.hand_in(name, Leave())

    def crash(self, name: str) -> None:
        self.network.crash(name)

    def wake(self, name: str) -> None:
        """One that was crashed goes on as if nothing had been: it was only paused."""
        self.network.revive(name, Beat())

    def subscribe(self, stored: StoredSubscription) -> None:
        """The registry first, then any dispatcher."""
        self.registry[stored.number] = stored
        dispatcher = self.rng.choice(sorted(self.dispatchers))
        self.network.carry_out(dispatcher, self.dispatchers[dispatcher].subscribe(stored, self.now))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        if end > self.now:
            self._environment.run(until=end)

    # The world outside of its network

    def answer(self, name: str, question: object) -> tuple[float, object]:
        assert isinstance(question, Restore)
        found = tuple(
            stored
            for stored in self.registry.values()
            if any(overlap(span, question.span) for span in stored.spans[question.dimension])
        )
        return self.rng.uniform(0.1, 2), Restored(question.dimension, question.span, found)

    def told(self, name: str, news: object) -> None:
        assert isinstance(news, Confirmed)
        self.confirmed.add(news.number)

    def stopped(self, name: str) -> None:
        self.stopped_ones.add(name)

    # Invariants

    def live(self) -> list[str]:
        """The matchers that are neither dead nor stopped nor leaving, and own something."""
        return [
            name
            for name, member in self.matchers.items()
            if not self.network.is_down(name) and member.row.state is State.UP
        ]

    def tables(self) -> list[MatcherTable]:
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
