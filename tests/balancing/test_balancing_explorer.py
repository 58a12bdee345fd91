"""Random sessions with losses, duplicates, cuts and crashes: each event is delivered once, in order."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest
from tests.doses import drawn

sys.path.insert(0, str(Path(__file__).parent))

from balancing_world import World

from fieldfare_lab.balancing.acceptor import MigratingAcceptor
from fieldfare_lab.balancing.messages import Detach

BROKERS = ("A", "B", "C")


def explored(seed: int) -> World:
    """A cluster whose load begins at A, and everything that goes wrong."""
    rng = Random(f"history {seed}")
    world = World(seed)
    world.build(*BROKERS)
    for number in range(rng.randrange(10, 40)):
        low = rng.randrange(10)
        world.subscribe("A", f"s{number}", low, rng.randrange(low, 10))
    world.loss = rng.choice([0.0, 0.05, 0.3])
    world.crash_share = rng.choice([0.0, 0.01, 0.04])
    world.lag_s = {name: rng.choice([0.0, 0.0, 1.0]) for name in BROKERS}
    world.duplicate_share = rng.choice([0.0, 0.1])
    for _ in range(rng.randrange(20, 60)):
        for _ in range(rng.randrange(6)):
            world.publish(rng.choice("PQ"), rng.randrange(10))
        chance = rng.random()
        if chance < 0.08:
            world.cuts = set(rng.sample([*BROKERS, "H", "c-s1", "c-s2"], 2)) if not world.cuts else set()
        elif chance < 0.12:
            world.silent ^= {f"c-s{rng.randrange(10)}"}
        world.run(2 * rng.random())
    return world


def wrong_within(seeds: int) -> list[str]:
    """Return the errors of the first history that has some."""
    for seed in range(seeds):
        world = explored(seed)
        world.settle()
        if world.wrong():
            return [f"seed {seed}", *world.wrong()]
    return []


@pytest.mark.long
def test_nothing_is_lost_doubled_or_out_of_order_whatever_goes_wrong() -> None:
    assert wrong_within(drawn(150)) == []


def test_subscribers_do_move_in_these_histories() -> None:
    moved = 0
    for seed in range(4):
        world = explored(seed)
        world.settle()
        moved += sum(
            id in edge.entries for id in world.since for name, edge in world.edges.items() if name != "A"
        )
    assert moved > 10


@pytest.mark.long
def test_an_old_broker_that_ignores_the_acceptors_places_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops at what it has, though the new broker has events only from later on: some are lost."""
    detach = World._detach

    def forgetful(world: World, name: str, asked: Detach) -> None:
        places = {id: dict.fromkeys(at, 0) for id, at in asked.places.items()}
        detach(world, name, Detach(asked.session, places))

    monkeypatch.setattr(World, "_detach", forgetful)
    assert wrong_within(30)


@pytest.mark.long
def test_an_acceptor_that_opens_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It delivers from its own places on, while the old broker still delivers: some events come twice."""
    released = MigratingAcceptor.released

    def hasty(acceptor, sender, message, now):  # type: ignore[no-untyped-def]
        incoming = acceptor._state.incoming.get(message.session)
        if incoming is not None and message.places:
            message = type(message)(message.session, {id: incoming.places[id] for id in message.places})
        return released(acceptor, sender, message, now)

    monkeypatch.setattr(MigratingAcceptor, "released", hasty)
    assert wrong_within(30)
