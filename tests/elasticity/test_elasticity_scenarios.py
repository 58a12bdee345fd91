"""Moves as text: ``scenarios/*.txt`` hold what happens; below ``----`` who says what.

A story is commands, one a line: ``publish N`` (N events, a tenth of a second apart), ``move SLICE HOST``,
``move SLICE new``, ``release HOST``, ``crash HOST``, ``restart manager``, ``run SECONDS``, ``places``,
``heard`` (how many publications were notified, and how often twice). ``crash NAME when HEARER hears
MESSAGE`` and ``restart manager when ...`` wait for that moment. The trace has what a move is made of; no
items, heartbeats or what is kept. To record them again after an intended change:
``PYTHONPATH=src:lab:tests/stories:. python tests/elasticity/test_elasticity_scenarios.py``; review the diff.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import stories

sys.path.insert(0, str(Path(__file__).parent))

from elasticity_support import Cluster

from fieldfare.effects import Effect, Machine, source
from fieldfare.elasticity.messages import (
    CopyPrepared,
    HostAdded,
    HostReleased,
    PrepareCopy,
    RemoveSlice,
    RestoreSlice,
    SendCopy,
    SliceActive,
    SliceMove,
    Wired,
    Wiring,
)
from fieldfare_lab.elasticity.messages import SliceCopy, SliceRecalled

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
TOLD = (
    *(PrepareCopy, CopyPrepared, Wiring, Wired, SendCopy, SliceCopy, SliceActive, RemoveSlice),
    *(RestoreSlice, SliceRecalled, HostAdded, HostReleased),
)


def vector(numbers: dict[str, int]) -> str:
    return " ".join(f"{name}={number}" for name, number in sorted(numbers.items()))


def shown(message: object) -> str:
    kind = type(message).__name__
    if isinstance(message, Wiring):
        both = [
            f"{name} at {' and '.join(hosts)}" for name, hosts in message.places.items() if len(hosts) > 1
        ]
        return f"{kind} {message.version} {', '.join(both)}".rstrip()
    if isinstance(message, Wired):
        reach = [f"{name} from {vector(dict(numbers))}" for name, numbers in message.reach.items() if numbers]
        return f"{kind} {message.version} {', '.join(reach)}".rstrip()
    if isinstance(message, SendCopy):
        return f"{kind} {message.slice}/{message.epoch} to {message.to} at {vector(dict(message.reach))}"
    if isinstance(message, SliceCopy):
        return f"{kind} {message.slice}/{message.epoch} at {vector(dict(message.state.processed))}"
    if isinstance(message, HostAdded | HostReleased):
        return f"{kind} {message.host}"
    assert isinstance(
        message, PrepareCopy | CopyPrepared | SliceActive | RemoveSlice | RestoreSlice | SliceRecalled
    )
    return f"{kind} {message.slice}/{message.epoch}"


class Witness:
    """Stands in for a machine, writes down what it hears, and acts when it hears what is waited for."""

    def __init__(self, name: str, machine: Machine, story: Story) -> None:
        self._name, self._machine, self._story = name, machine, story

    def start(self, now: float) -> list[Effect]:
        return self._machine.start(now)

    def handle(self, message: object, now: float) -> list[Effect]:
        sender, content = source(self._name, message)
        if isinstance(content, TOLD):
            who = self._name if sender == self._name else f"{sender} to {self._name}"
            self._story.lines.append(f"{now:6.2f}  {who}: {shown(content)}")
        effects = self._machine.handle(message, now)
        act = self._story.waiting.pop((self._name, type(content).__name__), None)
        if act is not None:
            act()
        return effects


class Story(Cluster):
    """A cluster whose moves are written down, from when its slices run."""

    def __init__(self, seed: int) -> None:
        self.lines: list[str] = []
        self.waiting: dict[tuple[str, str], Callable[[], None]] = {}
        super().__init__(seed)
        self.run(3)
        for number in range(6):
            self.subscribe(number, number, number + 3)
        self.run(3)
        self.lines.clear()

    def _add(self, name: str, machine: Machine) -> None:
        super()._add(name, Witness(name, machine, self))

    def restart_manager(self) -> None:
        super().restart_manager()
        self.network.machines["manager"] = Witness("manager", self.network.machines["manager"], self)

    def act(self, command: str) -> None:
        self.lines.append(f"> {command}")
        command, _, moment = command.partition(" when ")
        verb, *words = command.split()
        if moment:
            hearer, _, message = moment.split()
            self.waiting[hearer, message] = partial(self.befall, verb, words[0])
        elif verb == "publish":
            for _ in range(int(words[0])):
                self.publish(self.published % 10)
                self.run(0.1)
        elif verb == "move":
            is_new = words[1] == "new"
            self.ask(SliceMove(words[0], 0 if is_new else words[1]), new_hosts=int(is_new))
        elif verb == "release":
            self.ask(released=(words[0],))
        elif verb == "run":
            self.run(float(words[0]))
        elif verb == "places":
            places = sorted(self.configuration.places.items())
            self.lines += [f"       {name}/{place.epoch} at {place.host}" for name, place in places]
        elif verb == "heard":
            heard = [each.publication for each in self.sink.heard]
            twice = len(heard) - len(set(heard))
            self.lines.append(f"       {len(set(heard))} of {self.published}, {twice} twice")
        else:
            self.befall(verb, words[0])

    def befall(self, verb: str, name: str) -> None:
        """Let a machine die."""
        self.lines.append(f"{self.now:6.2f}  {name} dies" + (", another begins" if verb == "restart" else ""))
        if verb == "restart":
            self.restart_manager()
        else:
            self.crash(name)


BEGIN = partial(Story, seed=1)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenario_gives_the_recorded_trace(path: Path) -> None:
    script, trace = stories.parts(path)
    assert stories.told(BEGIN, script) == trace


if __name__ == "__main__":
    stories.record(BEGIN, SCENARIOS)
