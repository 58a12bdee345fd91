"""Spaces are cut in other ways at each start, while whoever does so is killed: nobody misses anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from accidents import kill
from load import LoadSettings
from scene import BUSY, scene

from fieldfare.storage import open_index_store

pytestmark = pytest.mark.service

LOAD = LoadSettings(large_share=0.03, bulk_subscriptions=500)
FIRST = {"partitioning": "hash", "matchers": 2, "slices": "alpha=replicated"}
WAYS = (
    {"partitioning": "attribute_space", "matchers": 3, "slices": "alpha=hash:2", "forwarding": "random"},
    {"partitioning": "auto", "matchers": 2, "matcher_memory": 4096, "slices": "", "forwarding": "balanced"},
    {"partitioning": "single_attribute", "matchers": 2, "slices": "alpha=auto:1"},
)
RECUT = ("snapshot", "indexer", "driver", "supervisor")
"""Who takes part in it."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_who_reads_misses_nothing_while_spaces_are_cut_anew_and_everybody_dies_of_it(tmp_path: Path) -> None:
    """Subscriptions change all the while, some begin in the past; then everything is killed at once."""
    with scene(tmp_path / "data", 141, LOAD, **BUSY, **FIRST) as played:
        cuts = set()
        for way in WAYS:
            played.load.flow(played.random.randrange(50, 200))
            played.service.kill()
            played.restart(ready=False, **way)
            for victim in played.random.sample(RECUT, 2):
                # Once there is a builder, the space is cut some moment later, or has been by then.
                builders = played.service.processes("snapshot_builder")
                if victim == "snapshot":
                    kill(builders)
                else:
                    played.strike(victim)
            played.service.wait_ready()
            played.load.flow(100, 240)
            newest = open_index_store(played.service.folder.index_url).newest()
            assert newest is not None
            cuts.add(newest.spaces["default"].partitioning)
        assert len(cuts) > 1
