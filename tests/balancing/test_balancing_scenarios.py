"""Balancing as text: ``scenarios/*.txt`` hold what happens; below ``----`` what brokers and subscribers send.

A story is commands, one a line: ``cluster A B …`` begins it; ``unit A SECONDS`` is the matching time of a
subscription at a broker, ``rate`` the messages per second of all brokers, ``subscribe A ID LOW HIGH``,
``pin A ID LOW HIGH``, ``publish ORIGIN EVENT …``,
``lose KIND NUMBER`` loses the next messages of a kind, ``crash-after A KIND`` crashes a broker when it has
stored a message of a kind and before it sends it, ``cut A``, ``heal``, ``silence ID``, ``crash A``,
``start A``, ``run SECONDS``, ``check``. PIE messages are left out. To record the traces again after an
intended change: ``PYTHONPATH=src:tests/stories python tests/balancing/test_balancing_scenarios.py``; review
the diff.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stories

sys.path.insert(0, str(Path(__file__).parent))

from balancing_world import World

from fieldfare.balancing.messages import Cancel, Decided, Reply, Request, SessionEnded, StateChanged
from fieldfare.effects import Send
from fieldfare_lab.balancing.messages import Done, Drop, Join, Joined, Move, Open, Released, ReleaseNoted

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def shown(message: object) -> str:
    """A message without what the story does not need."""
    match message:
        case Request():
            return f"Request {message.session}"
        case Reply():
            return f"Reply {message.session} {message.state}, CSS of {len(message.css)}"
        case Move():
            return f"Move {message.session} {message.subscription.id} to {message.to}, N={message.total}"
        case Join():
            return f"Join {message.session} {message.subscription.id}, N={message.total}"
        case Joined():
            return f"Joined {message.session} {message.id}: {'yes' if message.is_accepted else 'refused'}"
        case Done():
            return f"Done {message.session} {places(message.joined)}"
        case Released():
            return f"Released {message.session} {places(message.places)}"
        case ReleaseNoted() | Cancel():
            return f"{type(message).__name__} {message.session}"
        case Open():
            return f"delivers {message.id} from {place(message.places)}"
        case Drop():
            return f"drops {message.id}, which stays at its old broker"
        case StateChanged():
            return f"{message.before} to {message.after}"
        case SessionEnded():
            return f"{message.session} has ended, {message.moved} moved"
        case Decided():
            chosen = sum(each.number for each in message.moved)
            return f"{message.session}: {message.metric}, {chosen} subscribers to {message.to}"
    raise TypeError(message)


def place(found: object) -> str:
    return " ".join(f"{origin}:{offset}" for origin, offset in found.items())  # type: ignore[attr-defined]


def places(found: object) -> str:
    words = [f"{id} ({place(at)})" for id, at in found.items()]  # type: ignore[attr-defined]
    return ", ".join(words) or "none"


class Story:
    """A world whose messages are written down."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.world = World(0)
        self.world.write = self._write

    def act(self, command: str) -> None:
        self.lines.append(f"> {command}")
        verb, *words = command.split()
        world = self.world
        match verb:
            case "cluster":
                world.build(*words)
            case "unit":
                world.edges[words[0]].delay_unit_s = float(words[1])
            case "rate":
                world.rate = float(words[0])
            case "subscribe" | "pin":
                world.subscribe(words[0], words[1], int(words[2]), int(words[3]), is_pinned=verb == "pin")
            case "publish":
                for event in words[1:]:
                    world.publish(words[0], int(event))
            case "lose":
                world.to_lose[words[0]] += int(words[1])
            case "crash-after":
                world.to_crash.setdefault(words[0], []).append(words[1])
            case "cut":
                world.cuts.add(words[0])
            case "heal":
                world.cuts.clear()
            case "silence":
                world.silent.add(f"c-{words[0]}")
            case "run":
                world.run(float(words[0]))
            case "check":
                self._check()
            case _:
                getattr(world, verb)(*words)

    def _check(self) -> None:
        for name, edge in self.world.edges.items():
            ids = "down" if edge.machine is None else " ".join(sorted(edge.machine.state.subscriptions))
            state = "" if edge.machine is None else f" ({edge.machine.state.state})"
            self.lines.append(f"       {name}{state}: {ids or '-'}")
        for line in self.world.wrong() or ["every event was delivered once, in order"]:
            self.lines.append(f"       {line}")

    def _write(self, way: str, name: str, message: object) -> None:
        at = f"{self.world.now:6.2f}"
        if isinstance(message, Send):
            lost = ", lost" if way == "lost" else ""
            self.lines.append(f"{at}  {name} to {message.to}: {shown(message.message)}{lost}")
        else:
            self.lines.append(f"{at}  {name}: {shown(message)}")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_balancing_story_goes_as_it_was_told(path: Path) -> None:
    script, trace = stories.parts(path)
    assert stories.told(Story, script) == trace
    assert "every event was delivered once, in order" in trace


def test_there_is_a_story_of_each_step() -> None:
    stems = {path.stem for path in SCENARIOS}
    for kind in ("request", "reply", "move", "join", "joined", "done", "released", "noted"):
        assert f"lost_{kind}" in stems
        assert f"crash_{kind}" in stems or kind in ("join",)  # a subscriber's crash is a lost message


if __name__ == "__main__":
    stories.record(Story, SCENARIOS)
