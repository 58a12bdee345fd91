"""A pipeline without Spark, index or kernels: every event meets every filter of its space."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fieldfare.filters import Filter, compile_filter
from fieldfare.gateway.delivery.record_lines import all_lines
from fieldfare.model import Change, interest_key, is_forwarded
from fieldfare.storage import EventLog, MatchLog, NewMatchBlock, Registry
from fieldfare.storage.event_log import Record
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.match_log import BLOCK_EVENTS_MAX, BLOCK_RECORDS_MAX

STEP_BYTES_MAX = 64 << 20
"""Maximum bytes of the records that one step matches, if there is more than one."""

_compiled: Callable[[str, str], Filter] = lru_cache(10_000)(compile_filter)


class NaivePipeline:
    """Matches a log of one partition with the filters' evaluator, and writes the match log.

    It cannot match encrypted spaces.

    Parameters
    ----------
    log, registry, match_log
        The service's stores.
    folder
        The layout of its data directory, for heartbeats and replays.
    """

    def __init__(self, log: EventLog, registry: Registry, match_log: MatchLog, folder: DataFolder) -> None:
        self._log = log
        self._registry = registry
        self._match_log = match_log
        self._folder = folder
        self._replays: Callable[[], int] | None = None

    def step(self, records: int = BLOCK_RECORDS_MAX) -> int:
        """Match at most `records` records, as one block; return the new end of the match log."""
        log, matches = self._log.partitions[0], self._match_log.partition(0)
        start = matches.end(log.start())
        bound = log.bound(start, STEP_BYTES_MAX, BLOCK_EVENTS_MAX)
        found = list(log.read(start, min(bound, log.end(), start + records)))
        if not found:
            return start
        matches.write(self._match(start, found))
        return found[-1].offset + 1

    def _match(self, start: int, records: Sequence[Record]) -> NewMatchBlock:
        versions = list(self._registry.versions(self._registry.revision(), 0))
        counts: list[int] = []
        lengths: list[int] = []
        numbers: list[int] = []
        spaces = Counter[str]()
        for record in records:
            counts += [0] * (record.offset - start - len(counts))
            counts.append(record.count)
            valid = [version for version in versions if _applies(version, record)]
            for line in all_lines(record.payload):
                event = json.loads(line)
                matched = sorted(
                    {version.destination or version.number for version in valid if _matches(version, event)}
                )
                lengths.append(len(matched))
                numbers += matched
                spaces[record.space] += len(matched)
        block = NewMatchBlock.by_event(
            start,
            records[-1].offset + 1,
            np.array(counts, np.int32),
            np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
            np.array(numbers, np.uint32),
            {"appended_ms": records[0].appended_ms, "matched_ms": time.time_ns() / 1e6},
        )
        return replace(block, spaces=spaces)

    def replay(self) -> int:
        """Match a piece of a subscription that began in the past; return the number of pieces, 0 or 1."""
        if self._replays is None:
            self._replays = _replayer(self._folder)
        return self._replays()

    def beat(self, offset: int | None = None, state: str = "running") -> None:
        """Write the heartbeats of pipeline and indexer.

        Records before `offset` count as committed; by default all that are matched.
        """
        if offset is None:
            offset = self._match_log.partition(0).end(self._log.partitions[0].start())
        beat = {"pid": 1, "state": state, "time_ms": time.time_ns() // 1_000_000, "offset": offset}
        for process in ("pipeline", "indexer"):
            path = self._folder.heartbeat_of(process)
            path.with_suffix(".new").write_text(json.dumps(beat))
            path.with_suffix(".new").replace(path)  # a reader never sees a part


def _matches(version: Change, event: Any) -> bool:
    if version.filter is None or version.dialect is None:
        return False
    return _compiled(version.filter, version.dialect).matches(event)


def _applies(version: Change, record: Record) -> bool:
    """Return whether a version of a filter is valid for a record's events."""
    is_local = version.space == record.space
    is_for_broker = version.space == interest_key(record.space) and is_forwarded(record.origin)
    return (is_local or is_for_broker) and version.revision <= record.stamp < version.closed_by


def _replayer(folder: DataFolder) -> Callable[[], int]:
    """Return a function that matches the next piece of a replay. It needs PySpark's package, but no Java."""
    from fieldfare.runtimes.spark.range_task import RecordRange
    from fieldfare.runtimes.spark.replay_planner import ReplayPlanner
    from fieldfare.runtimes.spark.replay_task import ReplayMatcher

    planner = ReplayPlanner(folder)

    def match_next() -> int:
        pieces = planner.next_round(1)
        for piece in pieces:
            matcher = ReplayMatcher(folder, piece.replay)
            matcher.match(RecordRange(piece.partition, piece.start, piece.end, 0))
        return len(pieces)

    return match_next
