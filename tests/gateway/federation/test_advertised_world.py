"""Advertisements change under kills, cuts and removals: nothing is lost, and planted mistakes are found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from advertised_world import AdvertisedNode, run_advertised

from fieldfare.filters import compile_filter
from fieldfare.filters.covering import region_of
from fieldfare.gateway.federation import advertisements as advertisements_module
from fieldfare.gateway.federation import departure
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.federation.heeding import Heeding

SEEDS = 12
PLANTED_SEEDS_MAX = 64


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time passes by rounds here."""
    monkeypatch.setattr(advertisements_module, "LOOK_S", 0.0)
    yield


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_event_is_lost_while_advertisements_change(tmp_path: Path, seed: int) -> None:
    world = run_advertised(tmp_path, seed)
    assert world.faults() == [], f"seed {seed}"


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_a_broker_of_an_earlier_version_may_be_between(tmp_path: Path, seed: int) -> None:
    world = run_advertised(tmp_path, seed, old="abcd"[seed % 4], deaths_max=0)
    assert world.faults() == [], f"seed {seed}"


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_a_broker_that_leaves_confirms_until_then(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or stays after all, and sends what is needed by then."""
    for name in ("SETTLED_S", "HELD_S"):
        monkeypatch.setattr(departure, name, 0.0)
    world = run_advertised(tmp_path, seed, deaths_max=0, leaver="b")
    assert world.faults() == [], f"seed {seed}"
    assert world.has_left or seed % 2 == 0


def test_a_world_has_accidents(tmp_path: Path) -> None:
    worlds = [run_advertised(tmp_path / str(seed), seed) for seed in range(6)]
    for name in ("kills", "removals", "accepted"):
        assert sum(getattr(world, name) for world in worlds), name
    for name in ("not-advertised", "advertisement-pending"):
        assert sum(world.refused.get(name, 0) for world in worlds), name
    assert sum(len(world.published) for world in worlds) > 50


def widen_at_once(patch: pytest.MonkeyPatch) -> None:
    """A wider advertisement counts before others have sent the filters that it needs."""
    patch.setattr(Advertisements, "_confirmed", lambda self: self._version)


def tell_at_once(patch: pytest.MonkeyPatch) -> None:
    """Others withdraw filters that an accepted event still needs."""

    async def may_tell(self: Advertisements, space: str) -> bool:
        return True

    patch.setattr(Advertisements, "_may_tell", may_tell)


def forget_slow_requests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Advertisements, "publish", Advertisements._publish)


def forget_cancelled_requests(patch: pytest.MonkeyPatch) -> None:
    """A request counts as ended when its client has gone, and its event is appended all the same."""
    publish = Advertisements.publish

    async def forgetful(self: Advertisements, *given: Any) -> None:
        try:
            await publish(self, *given)
        except asyncio.CancelledError:
            self._open.clear()
            raise

    patch.setattr(Advertisements, "publish", forgetful)


def forget_delayed_events(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AdvertisedNode, "delayed_ids", lambda self, space: None)


def narrow_for_others_first(patch: pytest.MonkeyPatch) -> None:
    """A narrower advertisement is told, but publishers go by the earlier one while it is not confirmed."""
    check = advertisements_module._first_that_waits

    def late(stated: Any, *given: Any) -> int | None:
        return check(stated[:1], *given)

    patch.setattr(advertisements_module, "_first_that_waits", late)


def confirm_before_the_filters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Heeding, "spaces_after", lambda self, broker, version: frozenset())


def confirm_what_was_not_stored(patch: pytest.MonkeyPatch) -> None:
    def note_only(self: Heeding, stated: Any, heeded: int) -> None:
        for row in stated:
            self._note(row)

    patch.setattr(Heeding, "take", note_only)


def send_only_what_is_covered(patch: pytest.MonkeyPatch) -> None:
    """A filter that the advertisement does not cover is held back, though it can match an event."""

    def needs(self: Heeding, broker: str, change: Any) -> bool:
        region = self._advertised(broker, "default")
        return (
            region is None or change.filter is None or region.covers(region_of(compile_filter(change.filter)))
        )

    patch.setattr(Heeding, "needs", needs)


MISTAKES = {
    widen_at_once: 6,
    tell_at_once: 5,
    forget_slow_requests: 56,
    forget_cancelled_requests: 15,
    forget_delayed_events: 22,
    narrow_for_others_first: 19,
    confirm_before_the_filters: 0,
    confirm_what_was_not_stored: 15,
    send_only_what_is_covered: 1,
}
"""Mistakes, each with a seed that finds it today: the search begins there."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    mistake(monkeypatch)
    first = MISTAKES[mistake]
    for seed in (*range(first, PLANTED_SEEDS_MAX), *range(first)):
        if run_advertised(tmp_path / str(seed), seed).faults():
            return
    pytest.fail(f"no seed below {PLANTED_SEEDS_MAX} has found it")
