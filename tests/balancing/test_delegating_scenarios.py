"""Sessions of brokers whose runtimes move the subscriptions, as text: ``delegating/*.txt``.

A story is commands, one a line: ``start A`` (again after ``crash A``), ``passive A`` starts a broker that
takes part in no session, ``subscribe A ID OUTPUT`` (a share of its output bandwidth), ``match A SECONDS``
(matching time of an event), ``lose KIND NUMBER`` loses the next messages of a kind, ``cut A``, ``heal``,
``refuse ID`` (no broker takes it), ``fail A`` (it cannot choose), ``request A B`` sends A a request in the
name of B, ``drain A``, ``run SECONDS``, ``check``: the subscriptions of each broker, most moves of one. To
record the traces again after an intended change: ``PYTHONPATH=src:tests/stories python
tests/balancing/test_delegating_scenarios.py``; review the diff.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import stories

sys.path.insert(0, str(Path(__file__).parent))

from delegating_world import SETTINGS, World

from fieldfare.balancing.load import NO_CAPACITY
from fieldfare.balancing.messages import (
    Cancel,
    Decided,
    Reply,
    Request,
    SessionEnded,
    SessionId,
    StateChanged,
)
from fieldfare.effects import Received, Send

SCENARIOS = sorted((Path(__file__).parent / "delegating").glob("*.txt"))


def shown(message: object) -> str:
    match message:
        case Request() | Cancel():
            return f"{type(message).__name__} {message.session}"
        case Reply():
            return f"Reply {message.session} {message.state}"
        case StateChanged():
            return f"{message.before} to {message.after}"
        case SessionEnded():
            return f"{message.session} has ended, {message.moved} moved"
        case Decided():
            why = message.metric if message.overloaded is None else f"overloaded {message.overloaded}"
            ids = " ".join(str(each.key) for each in message.moved) or "nothing"
            return f"{message.session}: {why}: {ids} to {message.to}"
    raise TypeError(message)


class Story:
    """A world whose messages are written down."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.world = World()
        self.world.write = self._write

    def act(self, command: str) -> None:
        self.lines.append(f"> {command}")
        verb, *words = command.split()
        world = self.world
        match verb:
            case "passive":
                world.start(words[0])
                world.brokers[words[0]].is_passive = True
                world.start(words[0])
            case "subscribe":
                world.brokers[words[0]].subscriptions[words[1]] = float(words[2])
            case "lose":
                world.to_lose[words[0]] += int(words[1])
            case "cut":
                world.cuts.add(words[0])
            case "heal":
                world.cuts.clear()
            case "refuse":
                world.refused.add(words[0])
            case "fail":
                world.brokers[words[0]].is_failing = True
            case "match":
                world.brokers[words[0]].matching_s = float(words[1])
            case "request":
                world.ask(words[1], words[0], Request(SessionId(words[1], 1, 1)))
            case "run":
                world.run(float(words[0]))
            case "check":
                self._check()
            case _:
                getattr(world, verb)(*words)

    def _check(self) -> None:
        for name, broker in self.world.brokers.items():
            state = "down" if broker.machine is None else broker.machine.state.state
            output = sum(broker.subscriptions.values())
            ids = " ".join(sorted(broker.subscriptions)) or "-"
            self.lines.append(f"       {name} ({state}) {output:.2f}: {ids}")
        self.lines.append(f"       moves of one: {max(self.world.moves.values(), default=0)}")

    def _write(self, way: str, name: str, message: object) -> None:
        at = f"{self.world.now:6.2f}"
        if isinstance(message, Send):
            lost = ", lost" if way == "lost" else ""
            self.lines.append(f"{at}  {name} to {message.to}: {shown(message.message)}{lost}")
        else:
            self.lines.append(f"{at}  {name}: {shown(message)}")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_session_goes_as_it_was_told(path: Path) -> None:
    script, trace = stories.parts(path)
    assert stories.told(Story, script) == trace


def test_there_is_a_story_of_each_loss_crash_and_refusal() -> None:
    stems = {path.stem for path in SCENARIOS}
    assert {f"lost_{kind}" for kind in ("request", "reply", "cancel")} <= stems
    assert {"crash_offloader", "crash_acceptor", "refused", "failed_choice", "crossing"} <= stems


@pytest.mark.parametrize("claimed", [0.0, 1e-300, 0.3])
def test_a_broker_that_never_shows_what_it_was_given_gets_one_session_in_a_while(claimed: float) -> None:
    """A neighbour that always says it has room would be given everything."""
    world = World()
    world.start("A")
    world.start("B")
    world.brokers["B"].claimed = claimed
    world.brokers["A"].subscriptions = {f"s{number}": 0.008 for number in range(100)}
    at_s: list[float] = []
    for _ in range(9_000):
        before = sum(world.moves.values())
        world.run(0.1)
        at_s += [world.now] * (sum(world.moves.values()) - before)
    in_a_while = max(sum(one <= each < one + SETTINGS.rest_s for each in at_s) for one in at_s)
    assert at_s and in_a_while <= SETTINGS.session_moves_max
    assert len(world.brokers["A"].subscriptions) >= 60


def test_no_more_moves_in_a_minute_than_the_settings_allow() -> None:
    world = World()
    world.start("A")
    world.start("B")
    world.brokers["A"].subscriptions = {f"s{number}": 0.008 for number in range(100)}
    at_s: list[float] = []
    for _ in range(6_000):
        before = sum(world.moves.values())
        world.run(0.1)
        at_s += [world.now] * (sum(world.moves.values()) - before)
    in_a_minute = max(sum(one <= each < one + 60 for each in at_s) for one in at_s)
    assert len(at_s) > 40 and in_a_minute <= SETTINGS.moves_per_min
    assert max(world.moves.values()) == 1


@pytest.mark.parametrize("claim", ["idle", "loaded"])
def test_a_broker_that_takes_part_in_nothing_stops_no_others(claim: str) -> None:
    """C says it has all the room, and answers nothing; or that it has far too much, and gives nothing."""
    world = World()
    for name in "ABC":
        world.start(name)
    world.brokers["C"].is_refusing = True
    world.brokers["C"].claimed = {"idle": 0.0, "loaded": 1e12}[claim]
    world.brokers["A"].subscriptions = {f"s{number}": 0.05 for number in range(12)}
    world.run(300)
    at_a, at_b = (sum(world.brokers[name].subscriptions.values()) for name in "AB")
    # The idle one counts again from time to time, and then it is to get a third.
    assert abs(at_a - at_b) <= 0.11, (at_a, at_b)
    assert max(world.moves.values()) == 1


@pytest.mark.parametrize("number", [12, 60])
def test_a_broker_that_accepts_sessions_and_takes_nothing_stops_no_others(number: int) -> None:
    """B has not the space of A's subscriptions, say; it always had the most room, and only B was asked."""
    world = World()
    for name in "ABC":
        world.start(name)
    world.brokers["B"].takes_nothing = True
    world.brokers["A"].subscriptions = {f"s{each}": 0.6 / number for each in range(number)}
    world.run(600)
    at_a, at_c = (sum(world.brokers[name].subscriptions.values()) for name in "AC")
    assert abs(at_a - at_c) <= 0.21, (at_a, at_c)
    assert max(world.moves.values()) == 1


def test_a_broker_that_is_always_busy_stops_no_others() -> None:
    """All others left it the share that its claims would be good for."""
    world = World()
    for name in "ABC":
        world.start(name)
    world.brokers["B"].is_always_busy, world.brokers["B"].claimed = True, 0.0
    world.brokers["A"].subscriptions = {f"s{each}": 0.02 for each in range(30)}
    world.run(300)
    at_a, at_c = (sum(world.brokers[name].subscriptions.values()) for name in "AC")
    assert abs(at_a - at_c) <= 0.11, (at_a, at_c)
    assert max(world.moves.values()) == 1


def test_a_broker_whose_clock_was_set_back_is_heard_again() -> None:
    """Its numbers are times: it was not heard for as long as the clock was set back."""
    world = World()
    for name in "AB":
        world.start(name)
    world.run(10)
    machine = world.brokers["A"].machine
    assert machine is not None and set(machine.peers(world.now)) == {"B"}
    last = machine.peers(world.now)["B"]
    machine.handle(Received("B", replace(last, number=1 << 62)), world.now)
    world.run(SETTINGS.stale_s + 2 * SETTINGS.pie_s)
    assert machine.peers(world.now)["B"].number < 1 << 62


def test_a_broker_that_many_ask_keeps_its_weight_although_it_refuses_most() -> None:
    """Each of five with much load lost the race for the one with room, and took it for a liar.

    For some seconds after a session it counts no more: until it shows what it was given.
    """
    world = World()
    for name in "ABCDEZ":
        world.start(name)
    for name in "ABCDE":
        world.brokers[name].subscriptions = {f"{name}{number}": 0.05 for number in range(12)}
    doubted = 0
    for _ in range(600):
        world.run(1)
        for name in "ABCDE":
            machine = world.brokers[name].machine
            assert machine is not None
            doubted += machine.peers(world.now)["Z"].capacity == NO_CAPACITY if world.now > 10 else 0
    outputs = [sum(broker.subscriptions.values()) for broker in world.brokers.values()]
    assert doubted < SETTINGS.stale_s and max(outputs) - min(outputs) <= 0.11, (doubted, outputs)
    assert max(world.moves.values()) == 1


if __name__ == "__main__":
    stories.record(Story, SCENARIOS)
