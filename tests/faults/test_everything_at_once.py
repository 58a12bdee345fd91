"""Spaces, forms of events, retention, compaction, snapshots and ``kill -9``, all together."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from scene import BUSY, BUSY_LOAD, Scene, scene

from fieldfare.storage import open_event_log

pytestmark = [pytest.mark.service, pytest.mark.slow, pytest.mark.timeout(1800)]

KINDS = [
    *("gateway", "driver", "task", "java", "indexer", "snapshot", "both", "starting", "supervisor"),
    *("gateway", "indexer"),
]


def check_that_it_was_busy(played: Scene) -> None:
    """Retention has removed records, and snapshots were built: else nothing was shown."""
    assert open_event_log(played.service.folder.log_url).start() > 0
    assert any((played.service.folder.index / "files").glob("snapshot-*"))


@pytest.mark.parametrize("seed", [101, 102, 103])
def test_everything_goes_on_while_every_process_is_killed(tmp_path: Path, seed: int) -> None:
    """Every process, in an order and at moments drawn anew, under all that is done in the background."""
    kinds = KINDS.copy()
    Random(seed).shuffle(kinds)
    print(kinds)
    with scene(tmp_path / "data", seed, load=BUSY_LOAD, **BUSY) as played:
        for kind in kinds:
            played.load.flow(played.random.randrange(1, 20_000))
            played.strike(kind)
            played.rest()
        played.load.flow(1_000)
        check_that_it_was_busy(played)
