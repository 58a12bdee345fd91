"""A replay that ends at the log's end, where there is a hole: it ends before the hole, once that is known.

Found by the simulation: the pipeline matched up to the last record before the hole, the gateway waited for
the hole to be matched too, and no new events were delivered.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "storage"))

from memory_log import MemoryEventLog
from memory_registry import MemoryRegistry
from storage_support import block_of

from fieldfare.delivery.keys import key_at
from fieldfare.gateway.delivery.replays import Replays
from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.model import Position
from fieldfare.storage import open_match_log
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Put


def test_the_past_ends_before_a_hole_that_was_the_logs_end(tmp_path: Path) -> None:
    log, registry, folder = MemoryEventLog(1, holes=0.0), MemoryRegistry(), DataFolder(tmp_path)
    space = registry.create_space("default")
    log.append([NewRecord(space, b"{}\n", 1, stamp=0)])
    log.raise_ends((3,))
    put = Put(space, "s", "a = 1", "sql", b"", start=(Position(0, 0, 0),))
    registry.apply([put], (3,), 0)
    readers = FairExecutor(2, 1, "test")
    replays = Replays(folder, log, registry, lambda: 1, readers)
    replay = replays.find(1)
    assert replay is not None and replay.known == {0: 3}, "a record in the hole could still be of the past"
    log.append([NewRecord(space, b"{}\n", 1, stamp=1)])
    # The pipeline, which looks now for the first time, knows that the past has one record.
    own = open_match_log(folder.replay_url(1, 1)).partition(0)
    own.write(block_of({(0, 0): [1]}, 0, 1))
    found = asyncio.run(replays.read(replay, key_at(0, 0), space))
    assert found is not None and found.end == 1
    assert asyncio.run(replays.read(replay, found.read_to, space)) is None
    assert not replay.holds(found.read_to), "from there on it is read with all others"
    readers.close()
