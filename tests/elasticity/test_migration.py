"""A slice moves while events flow, and machines die meanwhile: every event finds the same matches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

sys.path.insert(0, str(Path(__file__).parent))

from elasticity_support import OPERATORS, Cluster, Ranges

from fieldfare.effects import Effect, Machine, source
from fieldfare.elasticity.messages import (
    CopyPrepared,
    PrepareCopy,
    Probe,
    Pulse,
    RemoveSlice,
    SendCopy,
    SliceActive,
    SliceMove,
    Wired,
    Wiring,
)
from fieldfare_lab.elasticity.messages import Measured, SliceCopy, SliceKept

pytestmark = pytest.mark.long

RANGES = [(number, number * 3 % 40, number * 3 % 40 + 9) for number in range(30)]


def begun(seed: int, keep_most_s: float = 0.02) -> Cluster:
    """Return two hosts in which the subscriptions are stored; storing a state takes at most `keep_most_s`."""
    cluster = Cluster(seed, keep_most_s=keep_most_s)
    cluster.run(3)
    for stored in RANGES:
        cluster.subscribe(*stored)
    cluster.run(4)
    assert cluster.stored() == {number for number, _, _ in RANGES}
    return cluster


def check(cluster: Cluster, events: list[int], ranges: list[tuple[int, int, int]] = RANGES) -> None:
    """Each event was notified once, and as by one matcher that never moved."""
    never_moved = Ranges()
    for number, low, high in ranges:
        never_moved.store(number, (low, high))
    heard = sorted((each.publication, each.subscriptions) for each in cluster.sink.heard)
    assert heard == [(i, never_moved.matching(event)) for i, event in enumerate(events)]


def publish(cluster: Cluster, events: list[int], pause_s: float) -> None:
    for event in events:
        cluster.publish(event)
        cluster.run(pause_s)


def settle(cluster: Cluster) -> None:
    """A good network until everything is back at its place."""
    cluster.lose(0.0)
    cluster.run(45)
    places = cluster.configuration.places.values()
    assert not any(place.to or place.is_lost for place in places)
    assert not cluster.configuration.moves
    for name, place in cluster.configuration.places.items():
        holders = [
            host
            for host, machine in cluster.hosts.items()
            if name in machine.hosted and not cluster.network.is_down(host)
        ]
        assert holders == [place.host]


actions = st.lists(
    st.tuples(
        st.sampled_from(["move", "move", "manager", "host", "subscribe"]),
        st.sampled_from(OPERATORS.slices),
        st.integers(0, 3),
        st.floats(0.0, 3.0),
    ),
    max_size=8,
)


@settings(max_examples=drawn(100))
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.3]), actions)
def test_a_migration_is_right_for_any_interleaving(
    seed: int, loss: float, script: list[tuple[str, str, int, float]]
) -> None:
    """Slices of all three operators move about under load, on a network that loses and doubles, while
    managers and hosts die: no event is lost, doubled, or matched against other subscriptions than were
    stored."""
    cluster = begun(seed, keep_most_s=0.5)
    cluster.lose(loss)
    events: list[int] = []
    late: list[tuple[int, int, int]] = []
    for action, name, number, pause_s in script:
        more = [(len(events) + i) * 7 % 45 for i in range(5)]
        publish(cluster, more, pause_s / 10)
        events += more
        live = [host for host in cluster.configuration.hosts if not cluster.network.is_down(host)]
        if action == "move" and len(live) > 1:
            cluster.ask(SliceMove(name, live[number % len(live)]))
        elif action == "move":
            cluster.ask(SliceMove(name, 0), new_hosts=1)
        elif action == "manager":
            cluster.restart_manager()
        elif action == "host" and live:
            cluster.crash(live[number % len(live)])
        elif action == "subscribe":  # no event is in its range: it may come before or behind any
            late.append((1000 + len(late), 900, 999))
            cluster.subscribe(*late[-1])
        cluster.run(pause_s)
    settle(cluster)
    check(cluster, events)
    assert cluster.stored() == {number for number, _, _ in RANGES + late}
    publish(cluster, [950], 3.0)
    check(cluster, [*events, 950], RANGES + late)


class Dying:
    """Stands in for a machine, and has another die when this one hears a message for the first time."""

    def __init__(self, machine: Machine, type_: type, die: Callable[[], None], *, before: bool) -> None:
        self.machine, self.has_died = machine, False
        self._type, self._die, self._before = type_, die, before

    def start(self, now: float) -> list[Effect]:
        return self.machine.start(now)

    def handle(self, message: object, now: float) -> list[Effect]:
        is_it = not self.has_died and isinstance(source("", message)[1], self._type)
        self.has_died |= is_it
        if is_it and self._before:
            self._die()
        effects = self.machine.handle(message, now)
        if is_it and not self._before:
            self._die()
        return effects


STEPS = {
    "host1": (Wiring, SendCopy, RemoveSlice),
    "host2": (PrepareCopy, Wiring, SliceCopy, SliceKept),
    "edge": (Wiring,),
    "manager": (CopyPrepared, Wired, SliceActive),
}


@pytest.mark.parametrize("victim", ["host1", "host2", "manager"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize(("hears", "step"), [(who, step) for who, steps in STEPS.items() for step in steps])
@pytest.mark.parametrize(
    "name", ["M:1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("AP:1", "EP:2"))]
)
def test_any_machine_dies_at_any_step(name: str, hears: str, step: type, before: bool, victim: str) -> None:
    """Figure 3's steps, each with a death just before and just behind it: the move is done or undone."""
    cluster = begun(3)
    cluster.run(1)
    assert cluster.where()[name] == "host1"
    die = cluster.restart_manager if victim == "manager" else lambda: cluster.crash(victim)
    dying = Dying(cluster.network.machines[hears], step, die, before=before)
    cluster.network.machines[hears] = dying
    events = [i * 7 % 45 for i in range(40)]
    cluster.ask(SliceMove(name, "host2"))
    publish(cluster, events, 0.05)
    settle(cluster)
    assert dying.has_died
    check(cluster, events)
    assert cluster.where()[name] in ("host1", "host2")
    assert victim != cluster.where()[name]
    if victim == "manager":
        assert cluster.where()[name] == "host2"


def test_a_host_that_was_only_taken_for_dead_lets_go() -> None:
    """It was paused for a minute; its slices run elsewhere. Its attempts to store states are refused."""
    cluster = begun(4)
    cluster.network.cut(["host1"])
    events = [i * 7 % 45 for i in range(40)]
    publish(cluster, events, 0.5)
    assert "host1" not in cluster.where().values()
    assert cluster.released == ["host1"]
    cluster.network.cut([])
    cluster.network.revive("host1", Pulse())
    assert cluster.hosts["host1"].hosted
    settle(cluster)
    check(cluster, events)


def test_probes_are_collected_per_slice_and_host() -> None:
    """Section IV.B: the enforcer hears once all slices' probes are new."""
    cluster = begun(5)
    at = cluster.where()
    for host in ("host1", "host2"):
        here = [name for name, place in at.items() if place == host]
        probes = {name: Probe(0.1, 10, 5.0) for name in here}
        cluster.network.hand_in(host, Measured(probes))
    cluster.run(3)
    last = cluster.enforcer.probes[-1]
    assert last.slices.keys() == set(OPERATORS.slices)
    count = sum(place == "host1" for place in at.values())
    on_host = [last.slices[name] for name, place in last.places.items() if place == "host1"]
    assert on_host == [Probe(0.1, 10, 5.0)] * count
    cluster.crash("host2")
    heard = len(cluster.enforcer.probes)
    cluster.run(5)
    assert len(cluster.enforcer.probes) <= heard + 1
