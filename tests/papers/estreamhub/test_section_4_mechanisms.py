"""Barazzutti et al. 2014 (E-StreamHub), section IV: migration and the manager."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "elasticity"))

from elasticity_support import OPERATORS, Cluster

from fieldfare.effects import Effect, Machine, source
from fieldfare.elasticity.messages import Probe, SendCopy, SliceMove
from fieldfare_lab.elasticity.host import SliceHost
from fieldfare_lab.elasticity.messages import Item, Measured, SliceCopy
from fieldfare_lab.elasticity.slices import OperatorSlice, Phase


class Passing:
    """An operator that passes on what it gets."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def process(self, content: object) -> list[tuple[str, object]]:
        self.seen.append(content)
        return [("next", content)]

    def state(self) -> list[object]:
        return list(self.seen)

    def restore(self, state: list[object]) -> None:
        self.seen = list(state)


def test_figure_3_a_copy_goes_on_behind_the_vector_and_drops_what_is_obsolete() -> None:
    """Steps 2 to 4: one queue for each origin, the state with its vector, no item twice and none left out."""
    first, second = OperatorSlice("M:1", 1, Passing()), OperatorSlice("M:1", 2, Passing())
    first.begin_empty()
    for number in (1, 2, 3):
        first.take(Item("AP:1", "M:1", number, f"a{number}"))
    first.take(Item("AP:2", "M:1", 1, "b1"))
    for item in (Item("AP:1", "M:1", 2, "a2"), Item("AP:1", "M:1", 4, "a4"), Item("AP:2", "M:1", 2, "b2")):
        second.take(item)
    assert second.phase is Phase.INACTIVE and not second.processed
    state = first.state()
    assert state.processed == {"AP:1": 3, "AP:2": 1}
    second.begin(state)
    assert second.state().content == ["a1", "a2", "a3", "b1", "a4", "b2"]
    assert second.state().sent == {"next": 6}


class CommandReader:
    """Stands in for a machine and remembers what it hears."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.messages: list[object] = []

    def start(self, now: float) -> list[Effect]:
        return self.machine.start(now)

    def handle(self, message: object, now: float) -> list[Effect]:
        self.messages.append(source("", message)[1])
        return self.machine.handle(message, now)


def test_the_first_host_stops_once_the_queues_reach_back_to_what_it_has_processed() -> None:
    cluster = Cluster(1)
    cluster.run(4)
    witnesses = {}
    for name in ("host1", "host2"):
        witnesses[name] = cluster.network.machines[name] = CommandReader(cluster.network.machines[name])
    cluster.ask(SliceMove("M:1", "host2"))
    for event in range(30):
        cluster.publish(event)
        cluster.run(0.1)
    (asked, *_) = [each for each in witnesses["host1"].messages if isinstance(each, SendCopy)]
    (copy, *_) = [each for each in witnesses["host2"].messages if isinstance(each, SliceCopy)]
    assert all(copy.state.processed.get(origin, 0) >= number for origin, number in asked.reach.items())
    first: dict[str, int] = {}
    for each in witnesses["host2"].messages:
        if isinstance(each, Item) and each.target == "M:1":
            first[each.source] = min(each.number, first.get(each.source, each.number))
    assert all(number <= copy.state.processed[origin] + 1 for origin, number in first.items())
    assert first.keys() == {"AP:1", "AP:2"}
    machine = cluster.hosts["host1"]
    assert isinstance(machine, SliceHost) and "M:1" not in machine.hosted  # step 5


def test_events_are_processed_where_they_were_until_the_state_is_copied() -> None:
    """The interruption is from step 3 to step 4 only: at no time is a slice at nobody or at two."""
    cluster = Cluster(2)
    cluster.run(4)
    cluster.ask(SliceMove("EP:2", "host2"))
    active = []
    for _ in range(300):
        cluster.run(0.01)
        active.append(
            sum(
                host.hosted["EP:2"].slice.phase is Phase.ACTIVE
                for host in cluster.hosts.values()
                if "EP:2" in host.hosted
            )
        )
    assert set(active) <= {0, 1}
    assert active.count(0) * 0.01 < 0.3  # a message of at most 0.1 s, and what is kept before and behind it


def test_the_number_of_slices_is_fixed() -> None:
    cluster = Cluster(3)
    cluster.run(4)
    cluster.ask(SliceMove("M:1", 0), SliceMove("M:2", 1), new_hosts=2)
    cluster.run(20)
    assert set(cluster.where()) == set(OPERATORS.slices)
    assert len(cluster.configuration.hosts) == 4


def test_figure_4_the_manager_collects_probes_per_slice_and_host() -> None:
    """CPU, memory and network of each slice, from every host's heartbeat."""
    cluster = Cluster(5)
    cluster.run(4)
    at = cluster.where()
    for host in ("host1", "host2"):
        here = {name: Probe(0.1, 10, 5.0) for name, place in at.items() if place == host}
        cluster.network.hand_in(host, Measured(here))
    cluster.run(3)
    last = cluster.enforcer.probes[-1]
    count = sum(place == "host1" for place in at.values())
    on_host = [last.slices[name] for name, place in last.places.items() if place == "host1"]
    assert on_host == [Probe(0.1, 10, 5.0)] * count


def test_the_whole_state_of_the_manager_is_kept_so_that_another_goes_on() -> None:
    """A request of three moves; a new manager after each second."""
    cluster = Cluster(6)
    cluster.run(4)
    cluster.ask(SliceMove("AP:1", "host2"), SliceMove("M:1", "host2"), SliceMove("M:2", "host1"))
    cluster.run(0.3)
    for _ in range(5):
        cluster.restart_manager()
        cluster.run(1.0)
    cluster.run(20)
    where = cluster.where()
    assert (where["AP:1"], where["M:1"], where["M:2"]) == ("host2", "host2", "host1")
