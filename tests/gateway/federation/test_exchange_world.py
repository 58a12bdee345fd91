"""Exchanges under kills, cuts and removals: nothing is lost or doubled, and planted mistakes are found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from exchange_world import run_world

from fieldfare.gateway.federation import links as links_module
from fieldfare.gateway.federation import service as service_module
from fieldfare.gateway.federation.inbox import Inbox
from fieldfare.gateway.federation.receipts import Receipts
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.federation.wire import Entry
from fieldfare.storage.sqlite import kept
from fieldfare.storage.sqlite.links import LinkStore

SEEDS = 12
PLANTED_SEEDS_MAX = 60


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_or_doubled_when_a_broker_is_removed(tmp_path: Path, seed: int) -> None:
    world = run_world(tmp_path, seed)
    assert world.faults() == [], f"seed {seed}"


def keep_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept, "keep", lambda *_: (0, 0))


def keep_events_only(patch: pytest.MonkeyPatch) -> None:
    owed_of = links_module.owed_of
    patch.setattr(
        links_module, "owed_of", lambda *given: [each for each in owed_of(*given) if each.kind == "events"]
    )


def send_nothing_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Federation, "_send_again", lambda self, reason: None)


def forget_the_copies_when_they_are_confirmed_by_one(patch: pytest.MonkeyPatch) -> None:
    """A copy for several destinations is dropped with the first receipt."""
    drop = "DELETE FROM kept WHERE id = ?1 RETURNING bytes"
    patch.setattr(kept, "_DROP", drop)


def confirm_what_came_ahead(patch: pytest.MonkeyPatch) -> None:
    for_peer = Receipts.for_peer

    def greedy(self: Receipts, peer: str) -> Any:
        found = []
        for each in for_peer(self, peer):
            ahead = self._correspondence.get(each.to).ahead or {}
            is_own = each.source == self._clusters.name
            found.append(
                type(each)(each.source, each.to, each.hops, max([each.events, *ahead]), each.messages)
                if is_own
                else each
            )
        return tuple(found)

    patch.setattr(Receipts, "for_peer", greedy)


def append_both_copies_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    """Only what was received before counts as a repeat."""
    repeats = Inbox._repeats

    def forgetful(self: Inbox, entries: Sequence[Entry]) -> set[int]:
        return {place for place, each in enumerate(entries) if repeats(self, [each])}

    patch.setattr(Inbox, "_repeats", forgetful)


def count_copies_as_faults(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(service_module, "marked_again", lambda entry: entry)


def drop_what_was_sent_to_the_removed(patch: pytest.MonkeyPatch) -> None:
    forget = LinkStore.forget

    def forgetful(self: LinkStore, state: Any, again: Any = None) -> None:
        self.acknowledge(state.name, 1 << 40)
        forget(self, state, again)

    patch.setattr(LinkStore, "forget", forgetful)


MISTAKES = {
    keep_nothing: 2,
    keep_events_only: 5,
    send_nothing_again: 2,
    forget_the_copies_when_they_are_confirmed_by_one: 8,
    confirm_what_came_ahead: 8,
    append_both_copies_of_a_batch: 2,
    count_copies_as_faults: 2,
    drop_what_was_sent_to_the_removed: 3,
}
"""Mistakes, each with a seed that finds it today: the search begins there."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    mistake(monkeypatch)
    first = MISTAKES[mistake]
    for seed in (*range(first, PLANTED_SEEDS_MAX), *range(first)):
        world = run_world(tmp_path / str(seed), seed)
        if world.faults():
            return
    pytest.fail(f"no seed below {PLANTED_SEEDS_MAX} has found it")


def test_a_world_has_accidents(tmp_path: Path) -> None:
    worlds = [run_world(tmp_path / str(seed), seed) for seed in range(4)]
    for name in ("gone", "kills", "removals"):
        assert any(getattr(world, name) for world in worlds), name
