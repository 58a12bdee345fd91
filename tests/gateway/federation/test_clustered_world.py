"""Advertisements across clusters, under kills, cuts, joins and removals; planted mistakes are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clustered_world import (
    LINES,
    THREE_CLUSTERS,
    TWO_CLUSTERS,
    ClusteredNode,
    ClusteredWorld,
    by_filter,
    run_clustered,
)
from exchange_world import play

from fieldfare.filters import compile_filter
from fieldfare.filters.covering import region_of
from fieldfare.gateway.federation import advertisements as advertisements_module
from fieldfare.gateway.federation import unions as unions_module
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.federation.heeding import Heeding
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.federation.unions import Unions
from fieldfare.model import INTEREST

SEEDS = 4
PLANTED_SEEDS_MAX = 90
LINKS = {f"line of {count}": by_filter(links) for count, links in LINES.items()}
LINKS |= {"two clusters": TWO_CLUSTERS, "three clusters": THREE_CLUSTERS}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time passes by rounds here."""
    monkeypatch.setattr(advertisements_module, "LOOK_S", 0.0)
    yield


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", LINKS)
def test_no_event_is_lost_across_edges(tmp_path: Path, name: str, seed: int) -> None:
    world = run_clustered(tmp_path, seed, LINKS[name])
    assert world.faults() == [], f"seed {seed}"


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name, late, mortal", [
    ("line of 4", "da", ""), ("two clusters", "d", "a"), ("three clusters", "bg", "a"),
    ("three clusters", "cf", "g"),
])  # fmt: skip
def test_members_join_and_are_removed(tmp_path: Path, name: str, late: str, mortal: str, seed: int) -> None:
    world = run_clustered(tmp_path, seed, LINKS[name], late=late, mortal=mortal)
    assert world.faults() == [], f"seed {seed}"


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name, old", [("line of 4", "b"), ("two clusters", "c"), ("three clusters", "e")])
def test_a_broker_of_an_earlier_version_may_be_between_clusters(
    tmp_path: Path, name: str, old: str, seed: int
) -> None:
    world = run_clustered(tmp_path, seed, LINKS[name], old=old)
    assert world.faults() == [], f"seed {seed}"


def test_a_filter_that_is_held_back_does_not_count_for_earlier_events(tmp_path: Path) -> None:
    """Else an event that another subscription asked for too would reach it, and the next event would not."""

    async def course(world: ClusteredWorld) -> None:
        async def rounds() -> None:
            for _ in range(8):
                await world.round()

        await rounds()
        a, b = (world.nodes[name] for name in "ab")
        assert isinstance(a, ClusteredNode) and isinstance(b, ClusteredNode)
        b.subscribe(1, "data.n >= 4 AND data.n < 9")
        await rounds()
        world.lag = 1.0
        await a.offer("both", 8)
        await a.offer("one", 9)
        await a.advertise("data.n < 5")
        await rounds()
        b.subscribe(2, "data.n >= 8 AND data.n < 10")
        await rounds()
        await world.finish()

    world = ClusteredWorld(tmp_path, 1, "ab:N")
    try:
        play(course(world))
        assert world.faults() == []
        assert len(world.disks["b"].log) == 1
    finally:
        world.close()


def test_a_world_of_clusters_has_accidents(tmp_path: Path) -> None:
    worlds = [
        run_clustered(tmp_path / str(seed), seed, TWO_CLUSTERS, late="d", mortal="a") for seed in range(6)
    ]
    for name in ("kills", "removals", "accepted"):
        assert sum(getattr(world, name) for world in worlds), name
    for name in ("not-advertised", "advertisement-pending"):
        assert sum(world.refused.get(name, 0) for world in worlds), name
    passed = [record for world in worlds for record in world.disks["e"].log.values() if record.origin]
    assert len(passed) > 8


def confirm_at_once(patch: pytest.MonkeyPatch) -> None:
    """An edge does not wait for those behind it."""
    patch.setattr(Unions, "ready", lambda self, name: self._heeding.version(name))


def confirm_as_of_before(patch: pytest.MonkeyPatch) -> None:
    """What has come with the confirmation of those behind the edge is not sent before its own."""
    step = Federation._publish_and_forward

    def late(self: Federation, stamp: int) -> bool:
        return step(self, stamp if self._published < 0 else self._published)

    patch.setattr(Federation, "_publish_and_forward", late)


def confirm_before_the_filters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Heeding, "spaces_after", lambda self, broker, version: frozenset())


def greet_at_once(patch: pytest.MonkeyPatch) -> None:
    """A new broker is sent filters before those behind the edge send what it may publish."""
    ready = Unions.ready
    patch.setattr(Unions, "ready", lambda self, name: ready(self, name) or 0)


def leave_one_out(patch: pytest.MonkeyPatch) -> None:
    """The union lacks one broker of the other clusters."""
    union_of = unions_module.union_of
    patch.setattr(unions_module, "union_of", lambda parts: union_of(parts[1:]))


def leave_the_edge_out(patch: pytest.MonkeyPatch) -> None:
    """The union lacks what is published at the edge."""
    union_of = unions_module.union_of
    patch.setattr(unions_module, "union_of", lambda parts: union_of(parts[:-1] or parts))


def send_all_of_others(patch: pytest.MonkeyPatch) -> None:
    """Filters of other clusters are not held back."""
    needs = Heeding.needs
    patch.setattr(
        Heeding, "needs", lambda self, name, each: each.space.startswith(INTEREST) or needs(self, name, each)
    )


def send_of_others_what_is_covered(patch: pytest.MonkeyPatch) -> None:
    """A filter of another cluster that an advertisement does not cover is held back."""
    needs = Heeding.needs

    def few(self: Heeding, name: str, each: Any) -> bool:
        region = self._advertised(name, "default")
        is_other = each.space.startswith(INTEREST) and each.filter is not None and region is not None
        return region.covers(region_of(compile_filter(each.filter))) if is_other else needs(self, name, each)

    patch.setattr(Heeding, "needs", few)


def count_versions_from_one(patch: pytest.MonkeyPatch) -> None:
    """After a start an edge goes on with the versions of its own advertisements."""
    init, refresh = Unions.__init__, Unions.refresh

    def forgetful(self: Unions, *given: Any) -> None:
        init(self, *given)
        self._rows, self.version = {}, 0

    patch.setattr(Unions, "__init__", forgetful)
    patch.setattr(Unions, "refresh", lambda self, own, _: refresh(self, own, 0))


def tell_at_once(patch: pytest.MonkeyPatch) -> None:
    """A union excludes events that wait to be appended at the edge."""

    async def may_tell(self: Advertisements, space: str) -> bool:
        return True

    patch.setattr(Advertisements, "_may_tell", may_tell)


def widen_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Advertisements, "_confirmed", lambda self: self.version)


def widen_once_told(patch: pytest.MonkeyPatch) -> None:
    """Those behind an edge count as soon as they are told."""
    patch.setattr(unions_module, "confirmed_through", lambda known, told, version: version)


def count_what_is_held_back_from_before(patch: pytest.MonkeyPatch) -> None:
    """Removing a filter that was held back gives the registry no revision."""

    async def nothing(self: ClusteredNode) -> None: ...

    patch.setattr(ClusteredNode, "_next_revision", nothing)


MISTAKES: dict[Any, tuple[int, str, dict[str, str]]] = {
    confirm_at_once: (8, "line of 3", {}),
    confirm_as_of_before: (71, "line of 3", {}),
    confirm_before_the_filters: (0, "line of 3", {}),
    greet_at_once: (0, "line of 4", {"late": "da"}),
    leave_one_out: (1, "line of 3", {}),
    leave_the_edge_out: (1, "line of 3", {}),
    send_all_of_others: (0, "line of 3", {}),
    send_of_others_what_is_covered: (14, "line of 3", {}),
    count_versions_from_one: (5, "line of 3", {}),
    tell_at_once: (1, "line of 3", {}),
    widen_at_once: (1, "line of 3", {}),
    widen_once_told: (8, "line of 3", {}),
    count_what_is_held_back_from_before: (0, "line of 4", {"late": "da"}),
}
"""Mistakes, each with a world and a seed that find it today: the search begins there."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    mistake(monkeypatch)
    first, name, given = MISTAKES[mistake]
    for seed in (*range(first, PLANTED_SEEDS_MAX), *range(first)):
        if run_clustered(tmp_path / str(seed), seed, LINKS[name], **given).faults():
            return
    pytest.fail(f"no seed below {PLANTED_SEEDS_MAX} has found it")
