"""Helpers of the match log's tests: a naive match log, and blocks built from it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np

from fieldfare.storage import NewMatchBlock
from fieldfare.storage.files.match_log import BELL, FileMatchLog
from fieldfare.storage.match_log import MatchReader, MatchWriter

Matches = dict[tuple[int, int], list[int]]
"""The matches of each event (offset, index): the naive match log."""


WITHOUT_CHECKSUMS = "".join(
    f"ALTER TABLE {table} DROP COLUMN checksum;"
    for table in ("records", "trimmed", "holes", "ran", "observed")
)
"""Makes the tables of the log's file those of a format without checksums."""

STAMPS_WITHOUT_ORIGINS = "DROP INDEX stamps_by_stamp; ALTER TABLE stamps DROP COLUMN is_remote;"
RECORDS_WITHOUT_ORIGINS = "ALTER TABLE records DROP COLUMN origin;"
"""Make the tables of the log's file those of format 6."""


def block_of(matches: Matches, start: int, end: int, **extra: float) -> NewMatchBlock:
    """The block of a range of records from the naive match log, which holds every event."""
    places = sorted(place for place in matches if start <= place[0] < end)
    counts = np.bincount([offset - start for offset, _ in places], minlength=end - start)
    lists = [matches[place] for place in places]
    indptr = np.concatenate(([0], np.cumsum([len(found) for found in lists], dtype=np.int64)))
    numbers = np.array([number for found in lists for number in found], np.uint32)
    return NewMatchBlock.by_event(start, end, counts.astype(np.int32), indptr, numbers, extra)


def some_matches(records: int, seed: int = 1, most_events: int = 4, subscriptions: int = 30) -> Matches:
    chance = random.Random(seed)
    return {
        (offset, index): sorted(chance.sample(range(subscriptions), chance.randint(0, 5)))
        for offset in range(records)
        for index in range(chance.randint(1, most_events))
    }


def of_number(matches: Matches, number: int, from_offset: int = 0) -> list[tuple[int, int]]:
    return sorted(place for place, found in matches.items() if number in found and place[0] >= from_offset)


def read_on(log: MatchReader, number: int, at: int = 0) -> tuple[list[tuple[int, int]], int]:
    """The matches that a reader finds who steps from position to position, and where it stops."""
    met: list[tuple[int, int]] = []
    while (block := log.block_at(at)) is not None:
        assert block.start <= at < block.end
        offsets, indexes = block.matches_of(number, at)
        met += zip(offsets.tolist(), indexes.tolist(), strict=True)
        at = block.end
    return met, at


def write_in_blocks(log: MatchWriter, matches: Matches, cuts: list[int]) -> None:
    for start, end in pairwise(cuts):
        log.write(block_of(matches, start, end))


def files_of(log: FileMatchLog) -> list[Path]:
    return sorted(path for path in log.folder.rglob("*") if path.is_file() and path.name != BELL)
