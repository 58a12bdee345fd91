"""A broker leaves while others exchange events: kills at each step, cuts, and a change of mind."""

from __future__ import annotations

from pathlib import Path

import pytest
from exchange_world import run_departure

from fieldfare.gateway.federation import departure
from fieldfare.gateway.federation.departure import Departure

SEEDS = 8
KILLS_MAX = 400


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by rounds here."""
    monkeypatch.setattr(departure, "SETTLED_S", 0.0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_broker_leaves_while_links_are_cut(tmp_path: Path, seed: int) -> None:
    world = run_departure(tmp_path, seed)
    assert world.faults() == [], f"seed {seed}"
    assert world.has_left


def test_a_kill_at_any_step_of_a_departure_loses_and_doubles_nothing(tmp_path: Path) -> None:
    for kill_at in range(0, KILLS_MAX, 5):
        world = run_departure(tmp_path / str(kill_at), kill_at, kill_at, steps=8)
        assert world.faults() == [], f"killed at call {kill_at}"
        assert world.has_left
        if not world.kills:
            break
    assert kill_at > 50 and not world.kills


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_broker_that_was_leaving_stays_after_all(tmp_path: Path, seed: int) -> None:
    world = run_departure(tmp_path, seed, seed * 7, is_cancelled=True, steps=12)
    assert world.faults() == [], f"seed {seed}"
    assert not any(node.disk.withdrawn for node in world.nodes.values()) or world.has_left


def test_leaving_with_entries_that_wait_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake: the broker does not look at its outboxes, and does not wait for receipts."""
    look = Departure._look

    async def careless(self: Departure) -> None:
        await look(self)
        self._counts, self._sites = {}, []

    monkeypatch.setattr(Departure, "_look", careless)
    for seed in range(40):
        if run_departure(tmp_path / str(seed), seed).faults():
            return
    pytest.fail("no seed has found it")
