"""How spaces are cut changes at each start, and whoever has a part in it is killed under way."""

from __future__ import annotations

from pathlib import Path

import pytest
from accidents import kill
from load import LoadSettings
from scene import BUSY, Scene, scene
from service_support import until

from fieldfare.storage import open_index_store

pytestmark = pytest.mark.service

LOAD = LoadSettings(large_share=0.03, bulk_subscriptions=500)
FIRST = {"partitioning": "hash", "matchers": 2, "slices": "alpha=replicated"}
WAYS = (
    ({"partitioning": "attribute_space", "matchers": 3, "slices": "alpha=hash:2"}, ("snapshot", "indexer")),
    ({"partitioning": "auto", "matchers": 2, "matcher_memory": 4096, "slices": ""}, ("driver", "supervisor")),
    ({"partitioning": "single_attribute", "matchers": 4, "slices": "alpha=auto:1"}, ("indexer", "task")),
)
"""How spaces are cut from one start to the next, and who dies of it."""
CUT_WITHIN_S = 300.0
"""Planning that did not come to its end is tried again after a minute."""


def matchers(played: Scene) -> int:
    """At how many the default space is held now."""
    newest = open_index_store(played.service.folder.index_url).newest()
    return newest.spaces["default"].matchers if newest is not None else 0


def strike_while_it_is_cut(played: Scene, victim: str, wanted: int) -> bool:
    """Strike as soon as somebody builds the slices, or when they are there; whether it was before."""

    def builders() -> list[int]:
        return played.service.processes("snapshot_builder")

    until(lambda: builders() or matchers(played) == wanted)
    building = builders()
    if victim == "snapshot":
        kill(building)
    else:
        played.strike(victim)
    return bool(building)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_who_reads_misses_nothing_while_spaces_are_cut_anew_and_everybody_dies_of_it(tmp_path: Path) -> None:
    """Subscriptions change all the while, some begin in the past."""
    with scene(tmp_path / "data", 141, LOAD, **BUSY, **FIRST) as played:
        until(lambda: matchers(played) == FIRST["matchers"])
        for way, victims in WAYS:
            played.load.flow(played.random.randrange(50, 200))
            played.service.kill()
            played.restart(ready=False, **way)
            wanted = int(str(way["matchers"]))
            struck = [strike_while_it_is_cut(played, victim, wanted) for victim in victims]
            assert any(struck), "it was cut before anybody could be struck"
            played.service.wait_ready()
            played.load.flow(100, 240)
            until(lambda n=wanted: matchers(played) == n, CUT_WITHIN_S, why="(the space is cut)")
            played.load.flow(100, 240)
