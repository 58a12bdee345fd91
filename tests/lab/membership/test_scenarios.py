"""Joining, leaving and dying as text: ``scenarios/*.txt`` hold what happens; below ``----`` who says what.

A story is commands, one a line: ``subscribe X1 X2 Y1 Y2`` (a box), ``join``, ``leave NAME``, ``crash NAME``,
``wake NAME``, ``cut NAME ...``, ``heal``, ``run SECONDS``, ``owners`` (as the first dispatcher knows them).
The trace has every message but gossip, beats and loads. To record them again after
an intended change: ``PYTHONPATH=src:lab:tests/stories python tests/lab/membership/test_scenarios.py``;
review the diff.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import stories

sys.path.insert(0, str(Path(__file__).parent))

from membership_support import PATHS, System

from fieldfare.effects import Effect, Machine, source
from fieldfare.filters import compile_filter
from fieldfare.partitioning.axis import AXIS_END, AXIS_START
from fieldfare_lab.membership import stored_of
from fieldfare_lab.membership.gossip import Greeting, NewerRows, Reply
from fieldfare_lab.membership.messages import (
    Beat,
    Confirmed,
    HandOver,
    HandOverDone,
    JoinRequest,
    Leave,
    LoadMessage,
    Restored,
    Split,
    Subscribe,
    SubscribeDone,
)
from fieldfare_lab.membership.table import Span

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
UNTOLD = (Beat, Greeting, Reply, NewerRows, LoadMessage)


def shown_span(span: Span | None) -> str:
    if span is None:
        return "nothing"
    start, end = (
        edge if place == limit else f"{place[1]:g}"
        for place, limit, edge in zip(span, (AXIS_START, AXIS_END), ("start", "end"), strict=True)
    )
    return f"{start}..{end}"


def shown(message: object) -> str:
    if isinstance(message, JoinRequest | Split | Leave):
        return type(message).__name__
    if isinstance(message, HandOver):
        parts = [
            f"{'xy'[i]} {shown_span(span)} with {len(message.subscriptions[i])}"
            for i, span in enumerate(message.spans)
            if span
        ]
        return f"HandOver {message.number}: {', '.join(parts)}"
    if isinstance(message, HandOverDone):
        return f"HandOverDone {message.number}"
    if isinstance(message, Subscribe):
        return f"Subscribe {message.subscription.number} on {'xy'[message.dimension]}"
    if isinstance(message, SubscribeDone):
        return f"SubscribeDone {message.number} on {'xy'[message.dimension]} for {shown_span(message.span)}"
    if isinstance(message, Restored):
        found = len(message.subscriptions)
        return f"Restored {'xy'[message.dimension]} {shown_span(message.span)} with {found}"
    raise AssertionError(f"there is no text for {message}")


class Witness:
    """Stands in for a machine and writes down what it hears."""

    def __init__(self, name: str, machine: Machine, write: Callable[[str], None]) -> None:
        self._name, self._machine, self._write = name, machine, write

    def start(self, now: float) -> list[Effect]:
        return self._machine.start(now)

    def handle(self, message: object, now: float) -> list[Effect]:
        sender, content = source(self._name, message)
        if not isinstance(content, UNTOLD):
            who = self._name if sender == self._name else f"{sender} to {self._name}"
            self._write(f"{now:5.1f}  {who}: {shown(content)}")
        return self._machine.handle(message, now)


class Story(System):
    """A system whose every message is written down."""

    def __init__(self, seed: int) -> None:
        self.lines: list[str] = []
        super().__init__(seed)

    def _add(self, name: str, machine: Machine) -> None:
        super()._add(name, Witness(name, machine, self.lines.append))

    def told(self, name: str, news: object) -> None:
        super().told(name, news)
        assert isinstance(news, Confirmed)
        self.lines.append(f"{self.now:5.1f}  {name} tells: subscription {news.number} is stored everywhere")

    def stopped(self, name: str) -> None:
        super().stopped(name)
        self.lines.append(f"{self.now:5.1f}  {name} stops")

    def act(self, command: str) -> None:
        self.lines.append(f"> {command}")
        verb, *words = command.split()
        if verb == "subscribe":
            low_x, high_x, low_y, high_y = words
            text = f"x BETWEEN {low_x} AND {high_x} AND y BETWEEN {low_y} AND {high_y}"
            self.subscribe(stored_of(len(self.registry), compile_filter(text).normal_form, PATHS))
        elif verb == "owners":
            for dimension in range(2):
                owned = sorted(self.dispatchers["d0"].table.owned(dimension), key=lambda owner: owner[1])
                texts = [f"{name} {shown_span(span)}" for name, span in owned]
                self.lines.append(f"       {'xy'[dimension]}: {', '.join(texts)}")
        elif verb == "run":
            self.run(float(words[0]))
            self.check_no_gaps()
        elif verb in ("cut", "heal"):
            self.network.cut(words)
        elif verb == "join":
            self.join()
        else:
            {"leave": self.leave, "crash": self.crash, "wake": self.wake}[verb](words[0])


BEGIN = partial(Story, seed=1)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenario_gives_the_recorded_trace(path: Path) -> None:
    script, trace = stories.parts(path)
    assert stories.told(BEGIN, script) == trace


if __name__ == "__main__":
    stories.record(BEGIN, SCENARIOS)
