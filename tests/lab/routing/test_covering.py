"""FBR with covering: what the next hop stores covers all that is wanted there, at each moment."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from routing_support import VALUES, Range, World

from fieldfare_lab.routing import Fbr
from fieldfare_lab.routing.covering import Covering
from fieldfare_lab.routing.messages import (
    Origin,
    Publication,
    Subscribe,
    Unsubscribe,
)
from fieldfare_lab.routing.tables import Counters, RemoteTable

ORIGINS = ("P", "Q")


class NextHop:
    """What a next hop stores, and what it must match."""

    def __init__(self) -> None:
        self.table = RemoteTable()
        self.wanted: dict[tuple[str, str], Range] = {}
        self.repeats = 0

    def handle(self, asked: Subscribe | Unsubscribe) -> None:
        entry = self.table.add("here", (asked.subscriber, asked.id))
        if isinstance(asked, Subscribe) and (repeated := entry.repeated(asked)):
            assert repeated == asked.origins
            entry.requested(asked)
            self.repeats += 1
        else:
            assert all(asked.version > entry.asked.get(origin, 0) for origin in asked.origins)
            entry.requested(asked)
            # Answered at once: nothing but what is stored now is matched.
            for origin in asked.origins:
                entry.answered(origin, asked.version)
        self.check()

    def matched(self, origin: str, event: int) -> bool:
        return any(entry.matches(origin, event) for entry in self.table.entries())

    def stored(self, origin: str) -> list[Range]:
        found = [each for entry in self.table.entries() for each in entry.stored_at(origin)]
        return [each for each in found if isinstance(each, Range)]

    def check(self) -> None:
        for (origin, _), wanted in self.wanted.items():
            for event in range(wanted.low, wanted.high + 1):
                assert self.matched(origin, event), (origin, wanted, event)


@given(st.integers(0, 2**32))
def test_every_wanted_record_is_matched_after_every_message_and_nothing_covered_is_stored(seed: int) -> None:
    rng = Random(seed)
    covering, hop = Covering(), NextHop()
    for version in range(1, 60):
        id, origins = rng.choice("abcdef"), tuple(rng.sample(ORIGINS, rng.randint(1, 2)))
        known = [each for each in origins if (each, id) in hop.wanted]
        if known and rng.random() < 0.4:
            # It is not wanted from the end's answer on; the others are.
            for origin in known:
                del hop.wanted[origin, id]
            asked: Subscribe | Unsubscribe = Unsubscribe("B", id, version, tuple(known))
        else:
            low = rng.randrange(20)
            wanted = Range(low, low + rng.choice((0, 3, 8, 15)))
            for origin in origins:
                hop.wanted.pop((origin, id), None)
            asked = Subscribe("B", id, version, wanted, origins)
        for message in covering.request(asked):
            hop.handle(message)
        if isinstance(asked, Subscribe):
            hop.wanted |= dict.fromkeys([(each, id) for each in origins], asked.filter)  # type: ignore[arg-type]
        hop.check()
        for origin in ORIGINS:
            stored = hop.stored(origin)
            assert not any(one is not other and one.covers(other) for one in stored for other in stored), (
                stored
            )


def chain(uses_covering: bool) -> World:
    world = World(0, lambda _: Fbr(uses_covering=uses_covering))
    for name in "ABC":
        world.add(name)
    world.link("A", "B")
    world.link("B", "C")
    assert world.settle()
    return world


def stored_at(world: World, name: str) -> int:
    broker = world.sites[name].broker
    assert broker is not None
    return sum(group.subscriptions.stored() for group in broker.state.groups.values())


def test_covered_subscriptions_are_stored_once_they_are_not_covered_any_more() -> None:
    world = chain(True)
    for id, low, high in (("narrow", 10, 20), ("wide", 0, 50), ("inner", 30, 40), ("other", 60, 70)):
        world.subscribe("C", id, low, high)
    assert world.settle()
    assert stored_at(world, "A") == 2
    world.unsubscribe("C", "wide")
    assert world.settle()
    assert stored_at(world, "A") == 3
    world.subscribe("C", "other", 0, VALUES - 1)
    assert world.settle()
    assert stored_at(world, "A") == 1
    for event in range(VALUES):
        world.publish("A", event)
    assert world.settle()
    assert world.faults() == []
    off = chain(False)
    for id in ("narrow", "wide", "inner"):
        off.subscribe("C", id, 10, 20)
    assert off.settle()
    assert stored_at(off, "A") == 3


def test_an_entry_that_is_only_noted_is_not_examined() -> None:
    table, counters = RemoteTable(), Counters()
    for id, is_stored in (("wide", True), ("narrow", False)):
        entry = table.add("here", ("B", id))
        entry.requested(Subscribe("B", id, 1, Range(5, 6), ("P",), is_stored))
    assert table.match(Publication(Origin("P", 0, 0, 1), 1), counters) == []
    assert counters.examined == counters.held == 1
    assert table.stored() == 1


@pytest.mark.parametrize("middle", [True, False])
def test_brokers_with_and_without_covering_work_together(middle: bool) -> None:
    world = World(0, lambda name: Fbr(uses_covering=(name in "BD") == middle))
    for name in "ABCDE":
        world.add(name)
    for a, b in ("AB", "BC", "CD", "DE"):
        world.link(a, b)
    assert world.settle()
    rng = Random(1)
    for _ in range(60):
        name, id, low = rng.choice("CDE"), rng.choice("stu"), rng.randrange(VALUES)
        if rng.random() < 0.3:
            world.unsubscribe(name, id)
        else:
            world.subscribe(name, id, low, min(VALUES - 1, low + rng.choice((3, 30, 90))))
        for _ in range(10):
            world.publish("A", rng.randrange(VALUES))
        world.run(rng.choice((0.0, 0.02, 0.2)))
    assert world.settle()
    assert world.faults() == []
    assert sum(len(site.delivered) for site in world.sites.values()) > 100
